// y = A x for compressed rows A [rows][cols] in two regimes, sums in float32, deterministic.
//
// csr_many: x feature-major [cols][ld]. A warp has one row and 32 WIDE tokens: it reads 32 entries of the row at once,
// then one line of x for each, 16 bytes a thread. Floor: entries x tokens elements of x from the second cache.
// csr_few: x token-major, up to TOKENS tokens. A warp has one row, its threads the entries in turn. Floor: the bytes of
// A once; x stays in the first cache.
#include "numbers.cuh"

#define FULL 0xffffffffu
#ifndef WIDE
#define WIDE 1  // elements of x that a thread reads at once
#endif
#ifndef TOKENS
#define TOKENS 8
#endif

struct alignas(sizeof(Element) * WIDE) Line {
  Element e[WIDE];
};

extern "C" __global__ void __launch_bounds__(128)
csr_many(const int* pos, const int* crd, const Element* values, const Element* x, i64 ld, Element* y, i64 rows, i64 tokens) {
  const i64 row = i64(blockIdx.x) * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  const i64 token = (i64(blockIdx.y) * 32 + lane) * WIDE;
  if (row >= rows) return;
  const bool mine = token < tokens;
  float sum[WIDE] = {};
  const int end = pos[row + 1];
  for (int start = pos[row]; start < end; start += 32) {
    const bool there = start + lane < end;
    const int my_col = there ? crd[start + lane] : 0;
    const float my_value = there ? widen(values[start + lane]) : 0.f;
    const int count = end - start < 32 ? end - start : 32;
#pragma unroll 4
    for (int i = 0; i < count; i++) {
      const int col = __shfl_sync(FULL, my_col, i);
      const float value = __shfl_sync(FULL, my_value, i);
      if (!mine) continue;
      const Line line = *reinterpret_cast<const Line*>(x + i64(col) * ld + token);
#pragma unroll
      for (int e = 0; e < WIDE; e++) sum[e] = fmaf(value, widen(line.e[e]), sum[e]);
    }
  }
  if (!mine) return;
#pragma unroll
  for (int e = 0; e < WIDE; e++)
    if (token + e < tokens) y[row * tokens + token + e] = narrow(sum[e]);
}

extern "C" __global__ void __launch_bounds__(128)
csr_few(const int* pos, const int* crd, const Element* values, const Element* x, i64 ld, Element* y, i64 rows, i64 tokens) {
  const i64 row = i64(blockIdx.x) * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  if (row >= rows) return;
  const i64 first = i64(blockIdx.y) * TOKENS;
  const int count = int(tokens - first < TOKENS ? tokens - first : TOKENS);
  float sum[TOKENS] = {};
  for (int i = pos[row] + lane; i < pos[row + 1]; i += 32) {
    const float value = widen(values[i]);
    const Element* at = x + first * ld + crd[i];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
      if (t < count) sum[t] = fmaf(value, widen(at[t * ld]), sum[t]);
  }
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    for (int by = 16; by; by /= 2) sum[t] += __shfl_xor_sync(FULL, sum[t], by);
    if (t < count && lane == t) y[(first + t) * rows + row] = narrow(sum[t]);
  }
}
