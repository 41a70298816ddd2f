// A packed bitmap as a dense matrix: for products with many tokens, which cuBLAS does.
//
// A warp has a piece of 16 x 128 and a lane its stream of words, group by group (formats/levels/pieces.py).
// Floor: the bytes of the bitmap, and those of the dense matrix: 47 us for 14336 x 4096 at 50 % on an H200.
#include "numbers.cuh"

constexpr u64 KEPT = 0xefa9dc65b8237410;  // by code, four bits each: which places of a group are kept
constexpr int WORDS = 72;                // of a piece: codes, and the columns that lanes go on in

// The next group of a lane: zeros where nothing is kept.
struct Group {
  Element value[4] = {};

  __device__ __forceinline__ Group(const Element* words, int& row, int code) {
    const int kept = int(KEPT >> 4 * code) & 15, low = kept & 3, high = kept >> 2;
    const bool all = __popc(unsigned(kept)) > 2, both = low && high;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (!(kept >> i & 1)) continue;
      const int slot = all ? i : both ? i / 2 : i % 2;
      value[i] = words[(row + slot / 2) * 64 + slot % 2];
    }
    row += all ? 2 : kept > 0;
  }
};

extern "C" __global__ void __launch_bounds__(128)
bitmap_dense(const Element* values, const u32* bits, const int* pos, Element* dense, i64 rows, i64 cols, i64 steps) {
  after_the_kernel_before();
  const int lane = threadIdx.x % 32, t = lane % 4;
  const i64 step = i64(blockIdx.x) * 4 + threadIdx.x / 32, piece = i64(blockIdx.y) * steps + step;
  if (step >= steps) return;
  const u32* codes = bits + piece * WORDS;
  const int next = codes[64 + lane / 4] >> lane % 4 * 8 & 31;
  int column = lane, at = 0;
  for (int n = 0; n < 16; n++) {  // pair, high, step, upper
    if (n == 8) at = __shfl_sync(0xffffffff, at, next), column = next;
    const Group group(values + i64(pos[piece]) * 64 + column * 2, at, codes[lane * 2 + n / 8] >> 4 * (n % 8) & 15);
    const i64 row = i64(blockIdx.y) * 16 + n / 4 % 2 * 8 + lane / 4, col = step * 128 + n / 8 * 64 + n % 4 * 16 + t * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (row < rows && col + i < cols) dense[row * cols + col + i] = group.value[i];
  }
}
