// A packed bitmap as a dense matrix: for products with many tokens, which cuBLAS does.
//
// A warp has a piece of 64 x 64 and a lane its stream of words, octet by octet (formats/levels/pieces.py).
// Floor: the bytes of the bitmap, and those of the dense matrix: 43 us for 14336 x 4096 at 50 % on an H200.
#include "numbers.cuh"

// The next octet of a lane, two values for each pair. `at`: its next value; odd where a word has one value already.
struct Octet {
  Element value[8] = {};

  __device__ __forceinline__ Octet(const Element* words, int& at, u32 byte) {
    const bool begun = at & 1;
    int end = at + begun, filled = begun ? at : -1;  // the next whole word, and the place that the first single value fills
#pragma unroll
    for (int j = 0; j < 8; j += 2)
      if ((byte >> j & 3) == 3) value[j] = words[place(end)], value[j + 1] = words[place(end + 1)], end += 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      if (!(byte >> j & 1) || byte >> (j ^ 1) & 1) continue;
      value[j] = words[place(filled >= 0 ? filled : end++)];
      filled = -1;
    }
    if (byte) at = end;
  }

  static __device__ __forceinline__ int place(int n) { return n / 2 * 64 + n % 2; }
};

extern "C" __global__ void __launch_bounds__(128)
bitmap_dense(const Element* values, const u32* bits, const int* pos, Element* dense, i64 rows, i64 cols, i64 steps) {
  after_the_kernel_before();
  const int lane = threadIdx.x % 32;
  const i64 step0 = i64(blockIdx.x) * 4 + threadIdx.x / 32, piece = i64(blockIdx.y) * steps + step0;
  if (step0 >= steps) return;
  const Element* words = values + i64(pos[piece]) * 64 + lane * 2;
  int at = 0;
  for (int step = 0; step < 4; step++) {
    const u32 word = bits[piece * 128 + step * 32 + lane];
    for (int strip = 0; strip < 4; strip++) {
      const Octet octet(words, at, word >> 8 * strip & 255);
#pragma unroll
      for (int j = 0; j < 8; j++) {  // upper, high, odd
        const i64 row = i64(blockIdx.y) * 64 + strip * 16 + j / 2 % 2 * 8 + lane / 4;
        const i64 col = step0 * 64 + step * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2;
        if (row < rows && col < cols) dense[row * cols + col] = octet.value[j];
      }
    }
  }
}
