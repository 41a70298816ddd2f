// The shared columns of token-major activations, side by side: x [tokens][ld] -> out [tokens][64 steps], for v = "all".
// What comes out is the activation of an ordinary 2:4 product.
//
// One thread writes two groups: eight elements, 16 bytes of float16. Floor: reads what of x the columns touch (at
// m <= 16 every 32-byte sector), writes 4/m of it.
#include "numbers.cuh"

extern "C" __global__ void __launch_bounds__(256)
vnm_compact(const Element* x, i64 ld, const u8* cols, Element* out, i64 tokens, i64 width, i64 m, i64 steps) {
  const i64 pairs = steps * 8;  // of groups, in a token
  const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
  wait_for_the_kernel_before();
  let_the_next_kernel_start();  // not before: see AHEAD in vnm_some.cu
  if (i >= tokens * pairs) return;
  const i64 token = i / pairs, pair = i % pairs;
  const Element* line = x + token * ld;
  const u64 where = reinterpret_cast<const u64*>(cols)[pair];  // eight columns, a byte each
  alignas(16) Element eight[8];
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const i64 col = (pair * 2 + e / 4) * m + i64(where >> (8 * e) & 255);
    eight[e] = col < width ? line[col] : Element(0);
  }
  uint4* to = reinterpret_cast<uint4*>(out + i * 8);
#pragma unroll
  for (int part = 0; part < int(sizeof(eight) / 16); part++) to[part] = reinterpret_cast<const uint4*>(eight)[part];
}
