// vnm_few.cu: 16 rows x 64 compacted columns of W in registers, as mma.sp takes them, from 16, 8 or 4 bits a value.
//
// WEIGHT: 0 of the type ELEMENT; 1 e4m3, whose scale is applied to the sums; 3 int4 in -8 .. 7, stored as 0 .. 15, with a
// scale for each row and step. Both are exact in ELEMENT; a 4-bit value times its scale is rounded to ELEMENT.
#pragma once
#include "tensor_cores.cuh"

constexpr int VALUES = WEIGHT == 3 ? 1024 : WEIGHT == 1 ? 2048 : 4096;  // bytes of 64 rows x 64 compacted columns
constexpr int SCALES = WEIGHT == 3 ? 128 : 0;

// Where a piece of W lies.
struct Shared {
  unsigned at, scales;
  __device__ __forceinline__ uint4 four(int byte) const { return lds128(at + byte); }
  __device__ __forceinline__ uint2 two(int byte) const { return lds64(at + byte); }
  __device__ __forceinline__ unsigned one(int byte) const { return lds32(at + byte); }
  __device__ __forceinline__ unsigned scale(int row) const { return lds16<0>(scales + row * 2); }
};
struct Global {
  const char* at;
  const char* scales;
  __device__ __forceinline__ uint4 four(int byte) const { return __ldg((const uint4*)(at + byte)); }
  __device__ __forceinline__ uint2 two(int byte) const { return __ldg((const uint2*)(at + byte)); }
  __device__ __forceinline__ unsigned one(int byte) const { return __ldg((const unsigned*)(at + byte)); }
  __device__ __forceinline__ unsigned scale(int row) const { return __ldg((const u16*)scales + row); }
};

#if WEIGHT == 1
// Two e4m3 numbers, of which `pick` names the bytes in the odd places: their bits as those of a number with a larger
// exponent, times what that makes of 1.
__device__ __forceinline__ unsigned widen_e4m3(unsigned four, unsigned pick) {
  constexpr int SHIFT = ELEMENT == 1 ? 4 : 1;
  constexpr unsigned FACTOR = ELEMENT == 1 ? 0x7b807b80 : 0x5c005c00;  // 2^120, 2^8
  unsigned high = permute(four, 0, pick);
  return multiply2((high & 0x80008000) | (high & 0x7f007f00) >> SHIFT, FACTOR);
}
#endif

template <class From>
__device__ __forceinline__ void take_strip(uint4 (&a)[2], const From& from, int strip, int lane) {
#if WEIGHT == 3
  constexpr unsigned MAGIC = ELEMENT == 1 ? 0x43004300 : 0x64006400;  // 128 or 1024: the bits of q beside it are 128 + q
  constexpr unsigned LESS = ELEMENT == 1 ? 0xc308c308 : 0xe408e408;   // -136 or -1032
  unsigned low = from.scale(strip * 16 + (lane >> 2)) * 0x10001, high = from.scale(strip * 16 + (lane >> 2) + 8) * 0x10001;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned w = from.one(strip * 256 + half * 128 + lane * 4), r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = multiply2(add2((w >> (4 * i) & 0x000f000f) | MAGIC, LESS), i & 1 ? high : low);
    a[half] = {r[0], r[1], r[2], r[3]};
  }
#elif WEIGHT == 1
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint2 w = from.two(strip * 512 + half * 256 + lane * 8);
    a[half] = {widen_e4m3(w.x, 0x1404), widen_e4m3(w.x, 0x3424), widen_e4m3(w.y, 0x1404), widen_e4m3(w.y, 0x3424)};
  }
#else
#pragma unroll
  for (int half = 0; half < 2; ++half) a[half] = from.four(strip * 1024 + half * 512 + lane * 16);
#endif
}
