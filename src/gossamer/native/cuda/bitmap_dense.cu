// A packed bitmap as a dense matrix: for products with many tokens, which cuBLAS does.
//
// A block has a piece of 64 x 64, a thread a word of its bits: 16 columns of two rows, whose values lie one after the other.
// Floor: the bytes of the bitmap, and those of the dense matrix: 43 us for 14336 x 4096 at 50 % on an H200.
#include "numbers.cuh"

extern "C" __global__ void __launch_bounds__(128)
bitmap_dense(const Element* values, const u32* bits, const int* pos, Element* dense, i64 rows, i64 cols, i64 steps) {
  after_the_kernel_before();
  const i64 piece = i64(blockIdx.y) * steps + blockIdx.x;
  const int i = threadIdx.x, step = i / 32, low = i / 4 % 8, strip = i % 4;
  const u32 word = bits[piece * 192 + i];
  const u16* starts = reinterpret_cast<const u16*>(bits + piece * 192 + 128);
  const Element* from = values + i64(pos[piece]) * 8 + starts[i];
  alignas(16) Element out[2][16];
#pragma unroll
  for (int bit = 0; bit < 32; bit++) {  // lane, upper, high, odd
    const bool kept = word >> bit & 1;
    out[bit / 2 % 2][bit / 4 % 2 * 8 + bit / 8 * 2 + bit % 2] = kept ? *from : Element(0);
    from += kept;
  }
  const i64 row = i64(blockIdx.y) * 64 + strip * 16 + low, col = i64(blockIdx.x) * 64 + step * 16;
  constexpr int WIDE = 16 / sizeof(Element);
#pragma unroll
  for (int high = 0; high < 2; high++) {
    if (row + 8 * high >= rows) continue;
    Element* to = dense + (row + 8 * high) * cols + col;
    if (col + 16 <= cols && cols % WIDE == 0)
#pragma unroll
      for (int e = 0; e < 16; e += WIDE) *reinterpret_cast<uint4*>(to + e) = *reinterpret_cast<const uint4*>(out[high] + e);
    else
#pragma unroll
      for (int e = 0; e < 16; e++)
        if (col + e < cols) to[e] = out[high][e];
  }
}
