// The range of results in eight bits, as both bindings of int8 products get it from torch.
#pragma once
#include "int8.h"
#include "torch_abi.h"

namespace gossamer_torch {

constexpr float LEAST = 1.17549435e-38f;  // of scales: the smallest normal number

// Nothing if out is not of bytes.
inline void take_out_range(gossamer::Int8Product& p, const Tensor& scale, const Tensor& zero) {
  if (p.out_type != gossamer::NUMBER_UINT8) return;
  require(scale && zero, "out of uint8 needs its scale and zero");
  p.out_scale = *scale.line<const float>(FLOAT32, 1, "scale of out must be float32 [1]");
  p.out_zero = *zero.line<const int32_t>(INT32, 1, "zero of out must be int32 [1]");
  require(p.out_scale >= LEAST && p.out_scale < 3e38f, "scale of out must be a positive normal number");
  require(p.out_zero >= 0 && p.out_zero <= 254, "zero of out must lie in 0 .. 254");
}

}  // namespace gossamer_torch
