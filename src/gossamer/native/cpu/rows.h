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
// Near (per = 0, window = 15): the same in half the bytes of crd, two steps of a lane in a byte, the first one in its lower
// half. A half says how far the column is behind the one before; a row starts one before its tile. 15 moves on and has no
// value, 0 stays and has none, unless a 15 came before. Every group has an even number of steps.
//
// Regular patterns (per > 0, n:m): every `window` columns (at most 254) hold `per` steps of each group, rows are in their
// own order, and nothing but crd is stored: [group, window, step, lane]. A window of at most 15 columns needs four bits:
// two steps of a lane share a byte, the first one in its lower half, [group, pair of steps, lane]; the number of windows is
// then rounded up so that a group has an even number of steps. Here `tile` is a multiple of the window that suits the
// kernel (regular_tile), with an even number of steps too.
#pragma once
#include <cstdint>

#include "attention.h"
#include "bf16.h"
#include "blocks.h"
#include "image.h"

namespace gossamer {

constexpr int LANES = 16;

struct Rows {
  int64_t rows, cols;
  int64_t block, tile;       // rows of a block, columns of a tile
  int64_t window, per;       // regular: every `window` columns hold `per` steps; else 0
  const int32_t* row;        // [blocks, tiles, block]; regular: the numbers 0 .. block - 1
  const int32_t* pos;        // [blocks * tiles * block / 16 + 1]; regular: none
  const uint8_t* crd;        // [steps * 16], or half of it
  const float* values;       // [steps * 16]
  const int8_t* bytes;       // instead of values, with a scale for each row: value = bytes * scale
  const float* scale;        // [rows], or null
  const Bf16* halves;        // instead of values

  // What follows from the sizes: divisions are slow enough to be done once.
  struct Counts {
    int64_t blocks, tiles, groups, windows, tile_windows, each;
  } n;
  void count() {
    n.blocks = (rows + block - 1) / block, n.tiles = (cols + tile - 1) / tile, n.groups = block / LANES;
    n.windows = per ? (cols + window - 1) / window : 0, n.tile_windows = per ? tile / window : 0;
    n.each = n.windows * per + (nibbles() && n.windows * per % 2 ? per : 0);
  }
  int64_t blocks() const { return n.blocks; }
  int64_t tiles() const { return n.tiles; }
  int64_t groups() const { return n.groups; }  // of a block
  int64_t windows() const { return n.windows; }
  bool near() const { return !per && window; }
  bool nibbles() const { return window && window <= 15; }  // two steps in a byte
  int64_t each() const { return n.each; }               // regular: steps of a group
  int64_t lines() const { return tile + 1; }            // of a panel, with one for the places without an entry
  int64_t width(int64_t k) const { return cols - k * tile < tile ? cols - k * tile : tile; }
  int64_t height(int64_t b) const { return rows - b * block < block ? rows - b * block : block; }
  // Where the steps of group g of block b begin in tile k, and how many there are.
  int64_t first(int64_t b, int64_t k, int64_t g) const {
    return per ? (b * n.groups + g) * n.each + k * n.tile_windows * per : pos[(b * n.tiles + k) * n.groups + g];
  }
  int64_t steps(int64_t b, int64_t k, int64_t g) const {
    if (per) return (n.windows - k * n.tile_windows < n.tile_windows ? n.windows - k * n.tile_windows : n.tile_windows) * per;
    const int32_t* p = pos + (b * n.tiles + k) * n.groups + g;
    return p[1] - p[0];
  }
  // Where the places of block b begin.
  int64_t begin(int64_t b) const { return (per ? b * n.groups * n.each : pos[b * n.tiles * n.groups]) * LANES; }
  int code(int64_t place) const {  // the column of a place in its window or tile; near: the step to it
    if (!nibbles()) return crd[place];
    const int64_t step = place / LANES;
    return crd[step / 2 * LANES + place % LANES] >> (step % 2 * 4) & 15;
  }
  template <class V> const V* first_value() const;  // of values, bytes or halves
  const int32_t* row_of(int64_t b, int64_t k, int64_t g) const {
    return per ? row + g * LANES : row + ((b * n.tiles + k) * n.groups + g) * LANES;
  }
};

// The columns of sixteen rows in a tile, or in the windows of it, step by step: for kernels that are not in a hurry.
struct Columns {
  int column[LANES];
  bool entry[LANES];  // else there is no value
  explicit Columns(const Rows& rows) : a(rows) {
    for (int l = 0; l < LANES; l++) column[l] = -1, code[l] = 0;
  }
  void go_to(int64_t step) {  // one after the other
    if (a.near()) {
      for (int l = 0; l < LANES; l++) {
        const int before = code[l];
        code[l] = a.code(step * LANES + l);
        entry[l] = code[l] ? code[l] < 15 : before == 15;
        column[l] += code[l];
      }
      return;
    }
    const bool half = a.nibbles();
    const uint8_t* c = a.crd + (half ? step / 2 : step) * LANES;
    const int down = half ? step % 2 * 4 : 0, mask = half ? 15 : 255, unused = int(a.per ? a.window : a.tile);
    for (int l = 0; l < LANES; l++) column[l] = c[l] >> down & mask;
    for (int l = 0; l < LANES; l++) entry[l] = column[l] != unused;
  }

 private:
  const Rows& a;
  int code[LANES];
};

template <> inline const float* Rows::first_value<float>() const { return values; }
template <> inline const int8_t* Rows::first_value<int8_t>() const { return bytes; }
template <> inline const Bf16* Rows::first_value<Bf16>() const { return halves; }

bool has_half_dots();  // vdpbf16ps
bool wide_panels();    // AVX-512: 64 tokens at a time instead of 32; on Intel, or by $GOSSAMER_PANEL
// With 33 to 47 tokens, 64 places for them take up to a tenth longer than two panels of 32.
inline bool wide_for(int64_t tokens) { return wide_panels() && (tokens <= 32 || tokens >= 48); }

// Are sixteen tokens at a time, by AVX-512, better for such a pattern? From 87 % on (regular.h), or from 94 % where the
// other choice is 64: on a Xeon 1:10 takes 23 to 29 % longer with sixteen than with 64, and 1:20 as long.
inline bool by_sixteen(int64_t lanes, int64_t window, int64_t per) {
  return lanes == 16 && per && window >= (wide_panels() ? 16 : 8) * per;
}

// Columns of a tile of a regular pattern, for kernels with so many lanes; all tiles are of about one size. Measured on
// Zen 4: 132 to 480 columns of 32 tokens are equally fast at 50 % and 75 %, and with 132 (17 KB) a weight that is not in the
// second-level cache is read fastest; 800 of 16 are 51 KB, more than the first-level cache has, but 768 columns need no
// second tile, and so their sums no memory.
inline int64_t regular_tile(int64_t lanes, int64_t cols, int64_t window, int64_t per) {
  const int64_t most = by_sixteen(lanes, window, per) ? 800 : 132;
  const int64_t windows = cols > window ? (cols + window - 1) / window : 1, fit = window < most ? most / window : 1;
  const int64_t tiles = (windows + fit - 1) / fit, each = (windows + tiles - 1) / tiles;
  return (each + (window <= 15 && each * per % 2)) * window;
}

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
  const Image* image = nullptr;  // instead of x: tokens are pixels of a convolution, and out is [images, rows, pixels]
  bool x_halves = false;     // x are numbers that bfloat16 can represent
};

struct Sample {              // grad[place] = sum over tokens of left[token, row] * right[token, col]; without an entry 0
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
  void (*pad)(const Padding&, int64_t begin, int64_t end);       // items: planes
  BlockKernels blocks;
  int64_t (*attention_items)(const Attention&);
  void (*attention)(const Attention&, int64_t begin, int64_t end);
  void (*widen)(const Bf16*, float*, int64_t count);
  void (*narrow)(const float*, Bf16*, int64_t count);            // to the nearest, ties to even
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif
const Kernels& kernels();                                        // the best that this processor runs
const Kernels* kernels_named(const char* name);                  // null: not here

}  // namespace gossamer
