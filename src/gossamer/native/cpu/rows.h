// Packed rows: what the CPU kernels read. Plain C++, no torch: pointers and sizes.
//
// A weight of `rows` x `cols` is cut into blocks of `block` rows (a multiple of 16) and tiles of `tile` columns (at most
// 254). Inside a block x tile the rows are sorted by how many values they keep there, and taken sixteen at a time, a
// *group*, each row being a *lane* of it. A group has as many *steps* as its fullest row; step j of lane l is place
//     (pos[g] + j) * 16 + l
// of `values` and of `crd`, the column inside the tile. Unused places hold value 0 and column `tile`, a line of zeros.
// Slot g * 16 + l of a block x tile belongs to row  row[g * 16 + l]  of the block: a permutation of all its rows.
// Why: equal counts in a group leave no branch to mispredict, a tile of activations stays in the first-level cache, one
// byte says the column, and a group is sixteen lanes of a vector when there is one token only.
#pragma once
#include <cstdint>

namespace gossamer {

constexpr int LANES = 16;

struct Rows {
  int64_t rows, cols;
  int64_t block, tile;       // rows of a block, columns of a tile
  int64_t window, per;       // n:m: every `window` columns hold `per` steps (0: no such promise)
  const int32_t* row;        // [blocks, tiles, block]
  const int32_t* pos;        // [blocks * tiles * block / 16 + 1]
  const uint8_t* crd;        // [steps * 16]
  const float* values;       // [steps * 16]
  int64_t blocks() const { return (rows + block - 1) / block; }
  int64_t tiles() const { return (cols + tile - 1) / tile; }
  int64_t groups() const { return block / LANES; }
};

enum Activation : int64_t { NONE = 0, RELU = 1, GELU = 2, SILU = 3 };

struct Product {             // out[n, rows] = act(x[n, cols] @ A.T + bias), both row-major with leading strides
  Rows a;
  const float* x;
  int64_t ldx, tokens;
  const float* bias;         // or null
  int64_t activation;
  float* out;
  int64_t ldo;
};

struct Sample {              // grad[place] = sum over tokens of left[token, row] * right[token, col]
  Rows a;                    // values unused
  const float *left, *right;
  int64_t ldl, ldr, tokens;
  float* grad;
};

// One set of these for each instruction set; `begin`, `end` are items of work, which no two threads share.
struct Kernels {
  const char* name;
  int64_t lanes;                                                 // tokens in a vector
  int64_t (*items)(const Product&);
  void (*product)(const Product&, int64_t begin, int64_t end);   // any number of tokens
  void (*sample)(const Sample&, int64_t begin, int64_t end);     // items: blocks of rows
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif
const Kernels& kernels();                                        // the best that this processor runs
const Kernels* kernels_named(const char* name);                  // null: not here

}  // namespace gossamer
