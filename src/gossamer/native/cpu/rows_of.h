// Packed rows, from the arguments of an operator.
#pragma once
#include "rows.h"
#include "torch_abi.h"

namespace gossamer_torch {

constexpr int32_t MOST_ROWS = 4096;  // of a block

// The sizes are rows, cols, block, tile, window, per. `lanes_of`: of the kernels that choose the tile of a regular pattern.
gossamer::Rows rows_of(const Tensor& row, const Tensor& pos, const Tensor& crd, const Value* sizes,
                       int64_t lanes_of = gossamer::kernels().lanes);

inline int64_t places(const gossamer::Rows& a, const Tensor& crd) { return crd.size(0) << a.nibbles(); }  // and as many values

}  // namespace gossamer_torch
