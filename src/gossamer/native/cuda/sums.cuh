// The end of vnm_few.cu, vnm_some.cu and bitmap.cu: sums in shared memory, [token][row], become results.
#pragma once
#include "tensor_cores.cuh"

#ifndef GATED
#define GATED 0  // 1: the second half of the rows is of another weight, and what is activated is multiplied by its product
#endif

// Four rows: what becomes of their sums. Scales are of weights of 8 bits and fewer.
struct Four {
  int row, count;  // the first row, and how many there are
  float scale[4], shift[4];
#if GATED
  float other[4];
#endif

  template <class P>
  __device__ __forceinline__ Four(const P& p, int first) : row(first), count(min(4, p.rows - first)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shift[i] = p.bias && i < count ? widen(p.bias[row + i]) : 0.f;
      scale[i] = WEIGHT && p.row_scale && i < count ? p.row_scale[row + i] : 1.f;
    }
  }

#if GATED
  __device__ __forceinline__ void see(const float* scales) {  // of the second weight: its rows are all there
#pragma unroll
    for (int i = 0; i < 4; ++i) other[i] = WEIGHT ? scales[row + i] : 1.f;
  }
#endif

  template <class P>
  __device__ __forceinline__ void put(const P& p, int token, float4 f, [[maybe_unused]] float4 second, float all) const {
    const float sum[4] = {f.x, f.y, f.z, f.w};
    u16* to = (u16*)(p.y + (long long)token * p.ldy) + row;
    float result[4];
    u16 y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] = act((WEIGHT ? sum[i] * (scale[i] * all) : sum[i]) + shift[i]);
#if GATED
    const float factor[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] *= WEIGHT ? factor[i] * (other[i] * all) : factor[i];
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = narrow(result[i]);
    if (count == 4 && (unsigned long long)to % 8 == 0)
      *(uint2*)to = {y[0] | (unsigned)y[1] << 16, y[2] | (unsigned)y[3] << 16};
    else
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < count) to[i] = y[i];
  }
};

__device__ __forceinline__ void add(float4& to, float4 f) { to.x += f.x, to.y += f.y, to.z += f.z, to.w += f.w; }

template <int ROWS>
struct Lines {  // of a token's sums; a warp that has the sums of a fragment writes them without bank conflicts
  static constexpr int LINE = ROWS + 4;
};

// COPIES of sums, one behind the other, are added up, then those of the blocks of a cluster, always in the same order. All
// COUNT threads of a block take part, each with the same four rows always. Made before the products, so that bias and scales
// are there when they are needed.
template <int ROWS, int TOKENS, int COPIES, int COUNT, int BLOCKS>
struct AddUp {
  static constexpr int HALF_ROWS = GATED ? ROWS / 2 : 0;  // to the row of the second weight
  static constexpr int FOURS = (GATED ? ROWS / 2 : ROWS) / 4, LINE = Lines<ROWS>::LINE, AT_ONCE = COUNT / FOURS;
  static constexpr int EACH = (TOKENS + AT_ONCE * BLOCKS - 1) / (AT_ONCE * BLOCKS);  // tokens of a thread
  static_assert(COUNT >= FOURS && ROWS % 16 == 0);
  Four four;
  int mine, first, rank;  // the thread's first row, and token
  int begin, tokens;      // the block's first token, and how many it has
  float all[WEIGHT ? EACH : 1];

  template <class P>
  __device__ __forceinline__ AddUp(const P& p, int row0, int rank, int begin = 0)
    : four(p, row0 + (int)threadIdx.x % FOURS * 4), mine(threadIdx.x % FOURS * 4), first(threadIdx.x / FOURS), rank(rank), begin(begin) {
    tokens = first < AT_ONCE ? min(TOKENS, p.tokens - begin) : 0;  // threads may be no multiple of FOURS
#pragma unroll
    for (int i = 0; i < (WEIGHT ? EACH : 0); ++i) {
      int token = first + (i * BLOCKS + rank) * AT_ONCE;
      all[i] = p.token_scale && token < tokens ? p.token_scale[begin + token] : 1.f;
    }
  }

  // `sums` are complete; shared memory begins at `smem`.
  template <class P>
  __device__ __forceinline__ void run(const P& p, unsigned smem, float* sums) const {
    if (BLOCKS > 1 && COPIES > 1)
      for (int token = first; token < tokens; token += AT_ONCE)
#pragma unroll
        for (int half = 0; half <= GATED; ++half) {
          const int at = token * LINE + mine + half * HALF_ROWS;
          *(float4*)(sums + at) = copies(sums + at);
        }
    sync_cluster<BLOCKS>();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      int token = first + (i * BLOCKS + rank) * AT_ONCE;
      if (token >= tokens) break;
      const int at = token * LINE + mine;
      four.put(p, begin + token, total(smem, sums, at), GATED ? total(smem, sums, at + HALF_ROWS) : float4{}, all[WEIGHT ? i : 0]);
    }
    sync_cluster<BLOCKS>();  // another block may still read this one's sums
  }

  __device__ __forceinline__ float4 total(unsigned smem, const float* sums, int at) const {
    if (BLOCKS == 1) return copies(sums + at);
    float4 sum = load_at(smem + at * 4, 0);
#pragma unroll
    for (int j = 1; j < BLOCKS; ++j) add(sum, load_at(smem + at * 4, j));
    return sum;
  }

  __device__ __forceinline__ float4 copies(const float* sums) const {
    const float4* at = (const float4*)sums;
    float4 sum = *at;
#pragma unroll
    for (int i = 1; i < COPIES; ++i) add(sum, at[i * TOKENS * LINE / 4]);
    return sum;
  }
};
