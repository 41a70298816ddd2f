// What the kernels for tensor cores share, beside the instructions themselves (ptx.cuh).
#pragma once
#include "numbers.cuh"

__device__ __forceinline__ int clamp16(int bytes) { return bytes < 0 ? 0 : bytes > 16 ? 16 : bytes; }

// Shared memory in 128-byte swizzle, as wgmma reads it.
__device__ __forceinline__ unsigned long long descriptor(unsigned at, unsigned leading, unsigned stride) {
  return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
     (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ float act(float v) { return activated(v, ACT); }

// The four words of a thread become word `t` of each of the four threads of its quad.
__device__ __forceinline__ void exchange(unsigned (&w)[4], int t) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      unsigned sent = t & bit ? w[i] : w[i + bit];
      unsigned got = __shfl_xor_sync(0xffffffff, sent, bit);
      if (t & bit)
        w[i] = got;
      else
        w[i + bit] = got;
    }
}

// 8 values, or as many as there are left; whole if the place is aligned.
__device__ __forceinline__ void put8(char* to, const unsigned (&w)[4], int left) {
  if (left >= 8 && ((unsigned long long)to & 15) == 0) {
    *(uint4*)to = uint4{w[0], w[1], w[2], w[3]};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < left) ((u16*)to)[i] = (u16)(w[i >> 1] >> (16 * (i & 1)));
  }
}
