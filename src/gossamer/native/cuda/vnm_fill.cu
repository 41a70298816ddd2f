// Values of a packed 2:4 weight, [rows][width], from a dense matrix or, if TURNED, from its transpose; the metadata says
// which. A warp has 16 rows and 8 groups of 4 columns, a thread those of rows low and low + 8 and of groups lane and
// lane + 4: the 16 bytes that lie together in the packed order. Floor: the dense matrix read once, half of it written.
//
// SOURCE: 1 if the dense matrix is float32, which is rounded to Element; else it has Elements.
#include "vnm.cuh"

#if SOURCE
typedef float Source;
__device__ __forceinline__ Element rounded(Source s) { return narrow(s); }
#else
typedef Element Source;
__device__ __forceinline__ Element rounded(Source s) { return s; }
#endif

struct alignas(16) Eight {
  Element e[8];
};

extern "C" __global__ void __launch_bounds__(256)
vnm_fill(const Source* dense, i64 line, const u32* meta, Element* values, i64 rows, i64 width, i64 tiles, i64 warps) {
  const i64 warp = i64(blockIdx.x) * 8 + (threadIdx.x >> 5);  // number of a step, tile, strip and half
  after_the_kernel_before();
  if (warp >= warps) return;
  const int thread = threadIdx.x & 31, low = thread >> 2, lane = thread & 3;
  const i64 half = warp & 1, tile = (warp >> 3) % tiles, step = (warp >> 3) / tiles;
  const i64 row = tile * 64 + (warp >> 1 & 3) * 16 + low, group = step * 16 + half * 8 + lane;
  const u32* words = meta + (warp >> 1) * 32 + low * 4 + half * 2;
  Eight out;
#pragma unroll
  for (int upper = 0; upper < 2; upper++) {
    const u32 word = words[upper];
    const i64 first = (group + 4 * upper) * 4;
#pragma unroll
    for (int high = 0; high < 2; high++) {
      const u32 bits = word >> (high * 16 + lane * 4);
      const i64 r = row + high * 8;
#pragma unroll
      for (int slot = 0; slot < 2; slot++) {
        const i64 c = first + (bits >> (2 * slot) & 3);
        Element e = 0;
#if TURNED
        if (r < rows && c < width) e = rounded(dense[c * line + r]);
#else
        if (r < rows && c < width) e = rounded(dense[r * line + c]);
#endif
        out.e[upper * 4 + high * 2 + slot] = e;
      }
    }
  }
  *reinterpret_cast<Eight*>(values + (warp * 32 + thread) * 8) = out;
}
