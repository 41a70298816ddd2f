// bfloat16 weights of any pattern as bits and kept values, in the order of AMX tiles. Pointers and sizes, no torch.
//
// Sixteen rows are a group, two columns a *pair*; the last pair of an odd number of columns has a column without values.
// bits[group][pair] has one bit for each position: 2 * (row % 16) + column % 2. The values of a group, in this order, are
// values[pos[group]] .. values[pos[group + 1]]. So the 32 positions of a pair, expanded, are 64 bytes: a row of the tile that
// AMX multiplies by, and what vdpbf16ps multiplies by two activations of a token.
#pragma once
#include <cstdint>

#include "bf16.h"

namespace gossamer {

struct TileRows {
  int64_t rows, cols;
  const int32_t* pos;    // [groups + 1]
  const uint32_t* bits;  // [groups, pairs]
  const Bf16* values;

  int64_t groups() const { return (rows + 15) / 16; }
  int64_t pairs() const { return (cols + 1) / 2; }
};

struct TileProduct {  // out[n, rows] = act(x[n, cols] @ A.T + bias); sums are float32, rounded once
  TileRows a;
  const Bf16* x;
  int64_t ldx, tokens;
  const float* bias;  // or null
  int64_t activation;
  Bf16* out;
  int64_t ldo;
};

struct TileKernels {
  const char* name;
  int64_t (*items)(const TileProduct&);
  void (*product)(const TileProduct&, int64_t begin, int64_t end);  // items of work, which no two threads share
};

extern const TileKernels tiles_baseline;
#if defined(__x86_64__)
extern const TileKernels tiles_avx512, tiles_amx;
#endif
const TileKernels& tile_kernels();                    // the best that this processor runs
const TileKernels* tile_kernels_named(const char* name);  // null: not here

}  // namespace gossamer
