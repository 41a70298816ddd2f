// Activations in 8 bits, with a scale for each token: x [tokens][ld] -> out [tokens][128 steps] and scale [tokens], so that
// scale * out is x. The scale is the largest magnitude of the token over 448 (e4m3) or 127 (int8). With GATHER, only the
// columns that a packed V:N:M weight with v = "all" reads, side by side; the scale is then of these.
//
// A block has a token. A thread keeps its columns, eight at a time, in registers from the first pass, for the magnitude, to
// the second; what is gathered comes from shared memory, into which the token was copied. Floor: x read once, half as many
// bytes written: 11.7 us for 4096 x 4096 tokens on an H200 (12.2 measured); with few tokens the latency of one load, of a
// sum over the block and of one store. Gathering from global memory took 1.2 us longer for 14336 columns.
// The next kernel may be set up once the one before has ended, not earlier: see AHEAD in vnm_some.cu.
//
// A token that is not finite becomes NaN. One of zeros, or so small that its scale would not be a normal number, has the
// smallest normal scale.
//
// Macros: ELEMENT, WEIGHT (1 e4m3, 2 int8), WARPS, EACH (times eight columns of a thread), GATHER, WIDE (1: what was rounded
// to e4m3 is written in float16, for bitmap.cu).
#include "numbers.cuh"

#ifndef WIDE
#define WIDE 0
#endif

#define THREADS (32 * WARPS)

constexpr float LARGEST = WEIGHT == 1 ? 448.f : 127.f, SMALLEST = 1.17549435e-38f;

union alignas(16) Eight {
  u16 e[8];
  u32 two[4];
};

struct Problem {
  const u16* x;
  const u8* cols;
  u8* out;
  float* scale;
  i64 ld, width, m, steps, aligned;  // aligned: lines of x begin at multiples of 16 bytes
};

constexpr int TOKEN = 128;  // where shared memory has the token, after the magnitudes of the warps

// The token, into shared memory.
__device__ __forceinline__ void stage(const Problem& p, const u16* line, unsigned smem) {
  if (p.aligned)
    for (i64 i = threadIdx.x; i * 8 < p.width; i += THREADS)
      copy16<false>(smem + TOKEN + int(i) * 16, line + i * 8, int(p.width - i * 8 < 8 ? (p.width - i * 8) * 2 : 16));
  else
    for (i64 i = threadIdx.x; i < p.width; i += THREADS) sts16(smem + TOKEN + int(i) * 2, line[i]);
  wait_for_copies();
  __syncthreads();
}

__device__ __forceinline__ Eight load(const Problem& p, const u16* line, i64 chunk, unsigned smem) {
  Eight v;
#if GATHER
  const uint2 where = __ldg(reinterpret_cast<const uint2*>(p.cols) + chunk);  // eight columns, a byte each
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const int col = (int(chunk) * 2 + e / 4) * int(p.m) + int((e < 4 ? where.x : where.y) >> (8 * (e % 4)) & 255);
    v.e[e] = col < p.width ? u16(lds16<0>(smem + TOKEN + col * 2)) : u16(0);
  }
#else
  const i64 first = chunk * 8;
  if (p.aligned && first + 8 <= p.width) return *reinterpret_cast<const Eight*>(line + first);
#pragma unroll
  for (int e = 0; e < 8; e++) v.e[e] = first + e < p.width ? line[first + e] : u16(0);
#endif
  return v;
}

__device__ __forceinline__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// The largest over all threads of a block: magnitudes as bits, which are ordered as their numbers are, NaN above all.
__device__ __forceinline__ u32 largest(u32 mine, u32* shared) {
  for (int by = 16; by; by /= 2) mine = larger(mine, __shfl_xor_sync(0xffffffffu, mine, by));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  u32 all = shared[0];
#pragma unroll
  for (int i = 1; i < WARPS; i++) all = larger(all, shared[i]);
  return all;
}

__device__ __forceinline__ u32 two(u16 low, u16 high, float factor) {
#if WEIGHT == 1
  return to_e4m3(widen(low) * factor, widen(high) * factor);
#else
  return to_int8(widen(low) * factor) | to_int8(widen(high) * factor) << 8;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) quantize(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  wait_for_the_kernel_before();
  let_the_next_kernel_start();
  const u16* line = p.x + i64(blockIdx.x) * p.ld;
  const i64 chunks = p.steps * 16;
  if (GATHER) stage(p, line, smem);
  Eight held[EACH];
  u32 most = 0;  // of even columns, and of odd ones
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const i64 chunk = i * THREADS + threadIdx.x;
    if (chunk < chunks) held[i] = load(p, line, chunk, smem);
  }
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (i * THREADS + threadIdx.x < chunks)
#pragma unroll
      for (int e = 0; e < 4; e++) most = __vmaxu2(most, held[i].two[e] & 0x7fff7fffu);
  const float magnitude = widen(u16(largest(larger(most & 0xffff, most >> 16), reinterpret_cast<u32*>(memory))));
  float scale = magnitude / LARGEST;
  if (scale < SMALLEST) scale = SMALLEST;
  if (!(magnitude < __int_as_float(0x7f800000))) scale = __int_as_float(0x7fc00000);
  if (threadIdx.x == 0) p.scale[blockIdx.x] = scale;
  const float factor = 1.f / scale;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const i64 chunk = i * THREADS + threadIdx.x;
    if (chunk >= chunks) break;
    const u16* e = held[i].e;
    const u32 low = two(e[0], e[1], factor) | two(e[2], e[3], factor) << 16, high = two(e[4], e[5], factor) | two(e[6], e[7], factor) << 16;
#if WIDE
    *reinterpret_cast<uint4*>(p.out + (i64(blockIdx.x) * chunks + chunk) * 16) =
      uint4{halves_of_e4m3<0>(low), halves_of_e4m3<1>(low), halves_of_e4m3<0>(high), halves_of_e4m3<1>(high)};
#else
    *reinterpret_cast<uint2*>(p.out + (i64(blockIdx.x) * chunks + chunk) * 8) = uint2{low, high};
#endif
  }
}
