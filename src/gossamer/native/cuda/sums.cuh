// The end of vnm_few.cu, vnm_some.cu and bitmap.cu: sums in shared memory, [token][row], become results.
#pragma once
#include "tensor_cores.cuh"

// Results of four rows and a token: scales (of weights of 8 bits and fewer), bias, activation.
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
  __device__ __forceinline__ void put(const P& p, int token, float4 f) const {
    const float sum[4] = {f.x, f.y, f.z, f.w};
    const float all = WEIGHT && p.token_scale ? p.token_scale[token] : 1.f;
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
  static constexpr int bytes(int tokens) { return tokens * LINE * 4; }
};

// COPIES of sums, one behind the other, are added up, then those of the CLUSTER's blocks, always in the same order. All
// threads of a block take part, each with the same four rows always; what they add up is complete.
template <int ROWS, int TOKENS, int COPIES, int COUNT, int CLUSTER_SIZE, class P>
__device__ __forceinline__ void add_up(const P& p, unsigned smem, float* sums, int row0, int rank) {
  constexpr int FOURS = ROWS / 4, LINE = Lines<ROWS>::LINE, AT_ONCE = COUNT / FOURS;
  static_assert(COUNT >= FOURS && ROWS % 32 == 0);
  const int mine = threadIdx.x % FOURS * 4, first = threadIdx.x / FOURS;
  const bool idle = first >= AT_ONCE;  // where the threads are no multiple of FOURS
  Four four(p, row0 + mine);
  if (CLUSTER_SIZE == 1 || COPIES > 1)
    for (int token = idle ? TOKENS : first; token < p.tokens; token += AT_ONCE) {
      float4* at = (float4*)(sums + token * LINE + mine);
      float4 total = *at;
#pragma unroll
      for (int i = 1; i < COPIES; ++i) add(total, at[i * TOKENS * LINE / 4]);
      if (CLUSTER_SIZE == 1)
        four.put(p, token, total);
      else
        *at = total;
    }
  if (CLUSTER_SIZE == 1) return;
  sync_cluster<CLUSTER_SIZE>();
  for (int token = idle ? TOKENS : first + rank * AT_ONCE; token < p.tokens; token += CLUSTER_SIZE * AT_ONCE) {
    float4 total = load_at(smem + (token * LINE + mine) * 4, 0);
#pragma unroll
    for (int j = 1; j < CLUSTER_SIZE; ++j) add(total, load_at(smem + (token * LINE + mine) * 4, j));
    four.put(p, token, total);
  }
  sync_cluster<CLUSTER_SIZE>();  // another block may still read this one's sums
}
