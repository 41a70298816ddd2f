// y = act(A x + bias) for packed rows (Condensed, PackedCSR) and few tokens, in the order that the CPU kernels read too:
// blocks of rows, tiles of columns, in a tile the rows in slots, the fullest first, sixteen side by side; a column is
// one byte. About 3 bytes a value at half precision, against 6 of CSR: few tokens are bound by bytes.
//
// A thread block has one block of rows and a share of its tiles: sums of TOKENS tokens for its rows in shared memory,
// where every row is in one slot of a tile, so that between two barriers no two threads add to the same sum. Shares are
// added up by rows_sum: deterministic, unlike atomics.
#include "numbers.cuh"

#define TOKENS 8
#define MOST_ROWS 384  // of a block
#define MOST_TILE 254

struct Rows {
  const int* row;       // [blocks][tiles][block]
  const int* pos;       // [blocks][tiles][block / 16] + 1
  const u8* crd;        // [steps][16]; a column of `tile` is unused
  const Element* values;
  i64 rows, cols, block, tile, tiles;
};

extern "C" __global__ void __launch_bounds__(256)
rows_few(Rows a, const Element* x, i64 ld, float* partial, i64 tokens, i64 share) {
  __shared__ float sums[TOKENS][MOST_ROWS];
  __shared__ float inputs[TOKENS][MOST_TILE + 1];
  const int count = int(tokens < TOKENS ? tokens : TOKENS);
  const i64 block = blockIdx.x, groups = a.block / 16;
  for (int i = threadIdx.x; i < TOKENS * MOST_ROWS; i += 256) (&sums[0][0])[i] = 0.f;
  const i64 end = (i64(blockIdx.y) + 1) * share < a.tiles ? (i64(blockIdx.y) + 1) * share : a.tiles;
  for (i64 tile = i64(blockIdx.y) * share; tile < end; tile++) {
    __syncthreads();  // the last tile's sums are in, and nobody reads its inputs any more
    for (int i = threadIdx.x; i < count * a.tile; i += 256) {
      const i64 token = i / a.tile, col = i % a.tile;
      inputs[token][col] = tile * a.tile + col < a.cols ? widen(x[token * ld + tile * a.tile + col]) : 0.f;
    }
    __syncthreads();
    const i64 at = (block * a.tiles + tile) * groups;
    for (i64 group = threadIdx.x / 16; group < groups; group += 16) {
      const int lane = threadIdx.x & 15;
      float sum[TOKENS] = {};
      const int last = a.pos[at + group + 1];
#pragma unroll 4
      for (int step = a.pos[at + group]; step < last; step++) {
        const int col = a.crd[i64(step) * 16 + lane];
        if (col >= a.tile) continue;
        const float value = widen(a.values[i64(step) * 16 + lane]);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
          if (t < count) sum[t] = fmaf(value, inputs[t][col], sum[t]);
      }
      const int row = a.row[(at + group) * 16 + lane];
#pragma unroll
      for (int t = 0; t < TOKENS; t++)
        if (t < count) sums[t][row] += sum[t];
    }
  }
  __syncthreads();
  for (i64 i = threadIdx.x; i < count * a.block; i += 256) {
    const i64 token = i / a.block, row = i % a.block;
    if (block * a.block + row < a.rows)
      partial[(i64(blockIdx.y) * tokens + token) * a.rows + block * a.block + row] = sums[token][row];
  }
}

extern "C" __global__ void __launch_bounds__(256)
rows_sum(const float* partial, i64 shares, const Element* bias, Element* y, i64 rows, i64 tokens, i64 activation) {
  const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
  if (i >= rows * tokens) return;
  float sum = bias ? widen(bias[i % rows]) : 0.f;
  for (i64 share = 0; share < shares; share++) sum += partial[share * rows * tokens + i];
  y[i] = narrow(activated(sum, int(activation)));
}
