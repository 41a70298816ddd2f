// The products that Python calls without torch's dispatcher (binding_python.cpp), with what their operators get.
#pragma once
#include "torch_abi.h"

namespace gossamer_torch {

Value direct_rows(const Tensor& values, const Tensor& x, const Tensor& bias, const int64_t* number_rows_activation);
Value direct_int8(const Tensor& weight, const Tensor& x, const Tensor& bias, const int64_t* rows_activation);

}  // namespace gossamer_torch
