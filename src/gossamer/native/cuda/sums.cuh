// The end of vnm_few.cu, vnm_some.cu and bitmap.cu: sums in shared memory, [token][row], become results.
#pragma once
#include "tensor_cores.cuh"

// Four rows: what becomes of their sums. Scales are of weights of 8 bits and fewer.
struct Four {
  int row, count;  // the first row, and how many there are
  float scale[4], shift[4];

  template <class P>
  __device__ __forceinline__ Four(const P& p, int first) : row(first), count(min(4, p.rows - first)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shift[i] = p.bias && i < count ? widen(p.bias[row + i]) : 0.f;
      scale[i] = WEIGHT && p.row_scale && i < count ? p.row_scale[row + i] : 1.f;
    }
  }

  template <class P>
  __device__ __forceinline__ void put(const P& p, int token, float4 f, float all) const {
    const float sum[4] = {f.x, f.y, f.z, f.w};
    u16* to = (u16*)(p.y + (long long)token * p.ldy) + row;
    u16 y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = narrow(act((WEIGHT ? sum[i] * (scale[i] * all) : sum[i]) + shift[i]));
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
  static constexpr int FOURS = ROWS / 4, LINE = Lines<ROWS>::LINE, AT_ONCE = COUNT / FOURS;
  static constexpr int EACH = (TOKENS + AT_ONCE * BLOCKS - 1) / (AT_ONCE * BLOCKS);  // tokens of a thread
  static_assert(COUNT >= FOURS && ROWS % 32 == 0);
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
      for (int token = first; token < tokens; token += AT_ONCE) *(float4*)(sums + token * LINE + mine) = copies(sums, token);
    sync_cluster<BLOCKS>();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      int token = first + (i * BLOCKS + rank) * AT_ONCE;
      if (token >= tokens) break;
      float4 total;
      if (BLOCKS == 1) {
        total = copies(sums, token);
      } else {
        total = load_at(smem + (token * LINE + mine) * 4, 0);
#pragma unroll
        for (int j = 1; j < BLOCKS; ++j) add(total, load_at(smem + (token * LINE + mine) * 4, j));
      }
      four.put(p, begin + token, total, all[WEIGHT ? i : 0]);
    }
    sync_cluster<BLOCKS>();  // another block may still read this one's sums
  }

  __device__ __forceinline__ float4 copies(const float* sums, int token) const {
    const float4* at = (const float4*)(sums + token * LINE + mine);
    float4 total = *at;
#pragma unroll
    for (int i = 1; i < COPIES; ++i) add(total, at[i * TOKENS * LINE / 4]);
    return total;
  }
};
