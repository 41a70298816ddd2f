// Numbers in memory and in registers, without a header of CUDA: NVRTC has none to read.
// ELEMENT: 0 float16, 1 bfloat16, 2 float32. Sums are float32 everywhere.
#pragma once
#include "ptx.cuh"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if ELEMENT == 2
typedef float Element;
#else
typedef u16 Element;  // the bits
#endif

__device__ __forceinline__ float widen(Element e) {
#if ELEMENT == 0
  return half_to_float(e);
#elif ELEMENT == 1
  return __int_as_float(int(u32(e) << 16));
#else
  return e;
#endif
}

__device__ __forceinline__ Element narrow(float f) {  // to the nearest, ties to even
#if ELEMENT == 0
  return float_to_half(f);
#elif ELEMENT == 1
  const u32 bits = u32(__float_as_int(f));
  return f != f ? u16(0x7fff) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  return f;
#endif
}

// 0 none, 1 relu, 2 gelu (by erf, as torch has it), 3 silu. NaN stays NaN.
__device__ __forceinline__ float activated(float v, int activation) {
  if (activation == 1) return v < 0.f ? 0.f : v;
  if (activation == 2) return 0.5f * v * (1.f + erff(v * 0.70710678118654752f));
  if (activation == 3) return v / (1.f + expf(-v));
  return v;
}
