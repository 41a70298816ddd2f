// Compressed rows of dense blocks (BSR): what the kernels of block_product.h and block_sample.h read. Pointers and sizes.
//
// The matrix is cut into blocks of `height` x `width`; the last ones of a size that doesn't divide are padded, with values
// that are never used. Row b of blocks holds the blocks pos[b] .. pos[b + 1], block k stands in column crd[k] of blocks,
// and its values are values[k * height * width + i * width + j].
#pragma once
#include <cstdint>

#include "bf16.h"

namespace gossamer {

struct Blocks {
  int64_t rows, cols;      // of the matrix
  int64_t height, width;   // of a block
  const int32_t* pos;      // [down() + 1]
  const int32_t* crd;      // [blocks]
  const float* values;     // [blocks, height, width]
  const Bf16* halves;      // instead of values
  int64_t first;           // the block that values begins with

  int64_t down() const { return (rows + height - 1) / height; }
  int64_t across() const { return (cols + width - 1) / width; }
  const float* block(int64_t k) const { return values + (k - first) * height * width; }
};

struct BlockProduct {      // out[n, rows] = act(x[n, cols] @ A.T + bias), both row-major with leading strides
  Blocks a;
  const float* x;
  int64_t ldx, tokens;
  const float* bias;       // or null
  int64_t activation;
  float* out;
  int64_t ldo;
};

struct BlockSample {       // grad[k, i, j] = sum over tokens of left[token, row] * right[token, col]
  Blocks a;                // values unused
  const float *left, *right;
  int64_t ldl, ldr, tokens;
  float* grad;
};

// One set of these for each instruction set; `begin`, `end` are items of work, which no two threads share.
struct BlockKernels {
  int64_t (*items)(const BlockProduct&);
  void (*product)(const BlockProduct&, int64_t begin, int64_t end);
  void (*sample)(const BlockSample&, int64_t begin, int64_t end);  // items: rows of blocks
};

}  // namespace gossamer
