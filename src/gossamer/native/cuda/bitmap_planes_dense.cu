// Two planes of e4m3 as a dense matrix: for products with many tokens, which cuBLAS does.
//
// A warp has a piece of 16 x 128 and a lane its groups (kernels/bitmap/planes.py).
// Floor: the bytes of both: 25 us for 14336 x 4096 at 50 % on an H200.
#include "numbers.cuh"

constexpr int WORDS = 96, META = 64, FIRST = 1024;  // of a piece in bits; in bytes

extern "C" __global__ void __launch_bounds__(128)
bitmap_planes_dense(const u8* values, const u32* bits, const int* pos, u8* dense, i64 rows, i64 cols, i64 steps) {
  after_the_kernel_before();
  const int lane = threadIdx.x % 32, low = lane / 4, t = lane % 4;
  const i64 step = i64(blockIdx.x) * 4 + threadIdx.x / 32, piece = i64(blockIdx.y) * steps + step;
  if (step >= steps) return;
  const u32* words = bits + piece * WORDS;
  const u16* first = (const u16*)(values + i64(pos[piece]) * 16);
  const u32 flags = words[META + lane];
  const u16* second = first + (FIRST + (dot4(flags & 0xcccccccc, 0x00ff0401, 0) >> 1)) / 2;
  for (int n = 0; n < 16; n++) {  // pair, step, upper, high
    const int pair = n / 8, half = n / 4 % 2, upper = n / 2 % 2, high = n % 2;
    const u32 meta = words[(low * 4 + half * 2 + upper) * 2 + pair] >> (high * 16 + t * 4);
    const u32 two = first[(pair * 32 + lane) * 8 + n % 8];
    u32 four = (two & 255) << 8 * (meta & 3) | (two >> 8) << 8 * (meta >> 2 & 3);
    if (flags >> (4 * (n % 8) + pair) & 1) four |= u32(*second++) << 16;
    const i64 row = i64(blockIdx.y) * 16 + high * 8 + low, col = step * 128 + pair * 64 + half * 32 + upper * 16 + t * 4;
    if (row >= rows) continue;
    u8* const to = dense + row * cols + col;
    if (cols % 4 == 0 && col < cols) {
      *(u32*)to = four;
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (col + i < cols) to[i] = u8(four >> 8 * i);
  }
}
