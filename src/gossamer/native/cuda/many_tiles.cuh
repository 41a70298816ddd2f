// vnm_many.cu and vnm_some.cu: the problem, its tiles, and where things lie in shared memory.
//
// GATED: D = act(V X) (W X), element by element, for two weights of one shape. Half of a tile's rows are of V, half of W, and a
// warpgroup with two blocks of 64 rows has one of each. D has as many rows as each of them.
#pragma once
#include "tensor_cores.cuh"

#ifndef GATED
#define GATED 0
#endif

#define BM (64 * MT * WM)
#define CONSUMERS (WM * WN)
#define MIXED (CONSUMERS == 3)  // tiles of two heights
#define NP (MIXED ? 2 : 1)      // times NB tokens of a warpgroup
#define BN (NB * NP * WN)
#define SPAN (BM / (GATED ? 128 : 64))  // blocks of 64 rows of a weight in a tile

constexpr int B_BYTES = BN * 128;
constexpr int A_BYTES = BM * 64;
constexpr int META = WEIGHT ? 1024 : 512;  // bytes of metadata beside 4096 of values: of 64 rows, in one step
constexpr int META_BYTES = BM / 64 * META;
constexpr int BLOCK = 8192;  // bytes of 64 x 64 results
constexpr int SMEM_A = STAGES * B_BYTES + CONSUMERS * OUT * BLOCK;
constexpr int SMEM_META = SMEM_A + STAGES * A_BYTES;
constexpr int SMEM_BAR = SMEM_META + STAGES * META_BYTES;
[[maybe_unused]] constexpr int SMEM_LIST = SMEM_BAR + 16 * STAGES;  // 64 bytes a step

struct Ring {
  int slot = 0, phase = 0;
  __device__ __forceinline__ void next(int by = 1) {
    if ((slot += by) >= STAGES) slot -= STAGES, phase ^= 1;
  }
};

struct Problem {
  const char* values;
  const char* meta;
  const unsigned char* cols;
  const char* x;
  char* y;
  const Element* bias;
  const float* row_scale;    // what a row of W, and a token of X, is multiplied with: 8-bit operands only
  const float* token_scale;
  int rows, k, m, v;       // v: rows that share columns
  int tokens, steps;       // steps of 64 compacted columns, or of 128 of 8 bits
  int ldx, ldy;            // bytes from one row of x or y to the next
  int tiles_m, tiles_n;
  int lines;               // tokens of a box of X: BN, or 64 and fewer; 64 where X is feature-major
};

#if GATED
struct Second {  // the weight that is not activated
  const char* values;
  const char* meta;
  const float* row_scale;
};
#else
struct Second {};
#endif

struct alignas(64) Map {  // of a matrix, for copies by the copy engine: written by the driver
  unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned full_bar(unsigned smem, int slot) { return smem + SMEM_BAR + slot * 8; }
__device__ __forceinline__ unsigned empty_bar(unsigned smem, int slot) { return smem + SMEM_BAR + (STAGES + slot) * 8; }

// The tiles of a block: first, first + stride, ... before end. Where heights are mixed a block takes neighbours, so that
// all blocks have as many tiles of each height.
struct Tiles {
  int first, stride, end;

  __device__ __forceinline__ Tiles(const Problem& p) {
    long long all = p.tiles_m * p.tiles_n;
    first = MIXED ? all * blockIdx.x / gridDim.x : blockIdx.x;
    stride = MIXED ? 1 : gridDim.x;
    end = MIXED ? all * (blockIdx.x + 1) / gridDim.x : all;
  }
};

// Rows of a tile, in blocks of 64: of mixed heights, 8 blocks are tiles of 2, 3 and 3.
__device__ __forceinline__ int first_block(int tile_m) {
  return MIXED ? tile_m / 3 * 8 + tile_m % 3 * 8 / 3 : tile_m * SPAN;
}
__device__ __forceinline__ int blocks_of(const Problem& p, int tile_m) {  // it may reach below the last rows
  return min(first_block(tile_m + 1), (p.rows + 63) / 64) - first_block(tile_m);
}
