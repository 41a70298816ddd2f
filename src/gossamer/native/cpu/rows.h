// Packed rows: what the CPU kernels read. Plain C++, no torch: pointers and sizes.
//
// Rows are taken sixteen at a time, a *group*, each row being a *lane* of it; the columns in tiles, so that a tile of
// activations stays in the first-level cache and one byte says a column. A group has a number of *steps* in each tile:
// step j of lane l is place (first + j) * 16 + l of `values` and of `crd`. Unused places hold the value 0 and the column
// one past the last, where the kernels keep a line of zeros.
//
// Any pattern (per = 0): blocks of `block` rows x tiles of `tile` columns (at most 254), in this order. Inside of one the
// rows are sorted by how many values they keep there, so that equal counts go together and no branch is mispredicted:
// slot g * 16 + l belongs to row  row[g * 16 + l]  of the block, and group g has the steps pos[g] .. pos[g + 1].
//
// Regular patterns (per > 0, n:m): every `window` columns (at most 254) hold `per` steps of each group, rows are in their
// own order, and nothing but crd is stored: [group, window, step, lane]. Here `tile` is a multiple of the window that
// suits the kernel.
#pragma once
#include <cstdint>

#include "bf16.h"
#include "blocks.h"

namespace gossamer {

constexpr int LANES = 16;

struct Rows {
  int64_t rows, cols;
  int64_t block, tile;       // rows of a block, columns of a tile
  int64_t window, per;       // regular: every `window` columns hold `per` steps; else 0
  const int32_t* row;        // [blocks, tiles, block]; regular: the numbers 0 .. block - 1
  const int32_t* pos;        // [blocks * tiles * block / 16 + 1]; regular: none
  const uint8_t* crd;        // [steps * 16]
  const float* values;       // [steps * 16]
  const int8_t* bytes;       // instead of values, with a scale for each row: value = bytes * scale
  const float* scale;        // [rows], or null
  const Bf16* halves;        // instead of values

  // What follows from the sizes: divisions are slow enough to be done once.
  struct Counts {
    int64_t blocks, tiles, groups, windows, tile_windows;
  } n;
  void count() {
    n.blocks = (rows + block - 1) / block, n.tiles = (cols + tile - 1) / tile, n.groups = block / LANES;
    n.windows = per ? (cols + window - 1) / window : 0, n.tile_windows = per ? tile / window : 0;
  }
  int64_t blocks() const { return n.blocks; }
  int64_t tiles() const { return n.tiles; }
  int64_t groups() const { return n.groups; }  // of a block
  int64_t windows() const { return n.windows; }
  int64_t lines() const { return per ? n.tile_windows * (window + 1) : tile + 1; }  // of a panel, with those of zeros
  int64_t width(int64_t k) const { return cols - k * tile < tile ? cols - k * tile : tile; }
  int64_t height(int64_t b) const { return rows - b * block < block ? rows - b * block : block; }
  // Where the steps of group g of block b begin in tile k, and how many there are.
  int64_t first(int64_t b, int64_t k, int64_t g) const {
    return per ? ((b * n.groups + g) * n.windows + k * n.tile_windows) * per : pos[(b * n.tiles + k) * n.groups + g];
  }
  int64_t steps(int64_t b, int64_t k, int64_t g) const {
    if (per) return (n.windows - k * n.tile_windows < n.tile_windows ? n.windows - k * n.tile_windows : n.tile_windows) * per;
    const int32_t* p = pos + (b * n.tiles + k) * n.groups + g;
    return p[1] - p[0];
  }
  template <class V> const V* first_value() const;  // of values, bytes or halves
  const int32_t* row_of(int64_t b, int64_t k, int64_t g) const {
    return per ? row + g * LANES : row + ((b * n.tiles + k) * n.groups + g) * LANES;
  }
};

template <> inline const float* Rows::first_value<float>() const { return values; }
template <> inline const int8_t* Rows::first_value<int8_t>() const { return bytes; }
template <> inline const Bf16* Rows::first_value<Bf16>() const { return halves; }

enum Activation : int64_t { NONE = 0, RELU = 1, GELU = 2, SILU = 3 };

struct Product {             // out[n, rows] = act(x[n, cols] @ A.T + bias), both row-major with leading strides
  Rows a;
  const float* x;
  int64_t ldx, tokens;
  const float* bias;         // or null
  int64_t activation;
  float* out;
  int64_t ldo;
  bool wide = false;         // AVX-512: panels of 64 tokens; else of 32
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
  BlockKernels blocks;
  void (*widen)(const Bf16*, float*, int64_t count);
  void (*narrow)(const float*, Bf16*, int64_t count);            // to the nearest, ties to even
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif
bool wide_panels();                                              // $GOSSAMER_PANEL is 64
const Kernels& kernels();                                        // the best that this processor runs
const Kernels* kernels_named(const char* name);                  // null: not here

}  // namespace gossamer
