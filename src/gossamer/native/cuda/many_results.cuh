// vnm_many.cu: from sums to D.
#pragma once
#include "many_multiply.cuh"

// From the sums of rows `row` and `row + 8` to results: scales, bias, activation.
template <bool BIAS>
struct TwoRows {
  float scale[2], shift[2];
#if GATED
  float other[2];  // scales of the second weight
#endif

  __device__ __forceinline__ TwoRows(const Problem& p, [[maybe_unused]] const Second& second, int row) {
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      int r = row + 8 * high;
      shift[high] = BIAS && r < p.rows ? widen(p.bias[r]) : 0.f;
      scale[high] = WEIGHT && r < p.rows ? p.row_scale[r] : 1.f;
#if GATED
      other[high] = WEIGHT && r < p.rows ? second.row_scale[r] : 1.f;
#endif
    }
  }

  // Result number i of four: two tokens of the first row, then of the second.
  __device__ __forceinline__ float of(const Sum* d, int i, float token) const {
    float f = WEIGHT ? float(d[i]) * (scale[i / 2] * token) : float(d[i]);
    f = act(BIAS ? f + shift[i / 2] : f);
#if GATED
    const float sum = float(d[OTHER + i]);
    f *= WEIGHT ? sum * (other[i / 2] * token) : sum;
#endif
    return f;
  }
#if GATED
  static constexpr int OTHER = NB / 2;  // sums of the second weight stand behind those of the first
#endif

  // Of two tokens.
  __device__ __forceinline__ unsigned low(const Sum* d, float2 token) const { return pack2(of(d, 0, token.x), of(d, 1, token.y)); }
  __device__ __forceinline__ unsigned high(const Sum* d, float2 token) const { return pack2(of(d, 2, token.x), of(d, 3, token.y)); }
};

// The scales of tokens `n` and `n + 1`; there are some beyond the last.
__device__ __forceinline__ float2 scales_of(const Problem& p, int n) {
#if WEIGHT
  return __ldg((const float2*)(p.token_scale + n));
#else
  return {1.f, 1.f};
#endif
}

#if !OUT
// 16 rows x NB tokens of a warp, straight from registers: the four threads that hold 16 bytes together exchange what they
// have, so that each stores 16 bytes.
template <bool BIAS>
__device__ __forceinline__ void store(const Problem& p, const Sum (&acc)[NB / 2], int row0, int n0, int lane) {
  int g = lane >> 2, t = lane & 3;
  TwoRows<BIAS> rows(p, Second{}, row0 + g);
#pragma unroll
  for (int j = 0; j < NB / 8; j += 4) {
    unsigned low[4], high[4];  // rows g and g + 8
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Sum* d = acc + 4 * (j + i);
      float2 scales = scales_of(p, n0 + (j + i) * 8 + 2 * t);
      low[i] = rows.low(d, scales), high[i] = rows.high(d, scales);
    }
#if Y_TOKENS
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      unsigned w[4] = {turn(low[i]), turn(high[i]), turn(low[i + 1]), turn(high[i + 1])};
      exchange(w, t);
      int token = n0 + (j + i + (t >> 1)) * 8 + g, row = row0 + (t & 1) * 8;
      if (token < p.tokens) put8(p.y + (long long)token * p.ldy + row * 2, w, p.rows - row);
    }
#else
    exchange(low, t);
    exchange(high, t);
    int token = n0 + (j + t) * 8;
    char* to = p.y + (long long)(row0 + g) * p.ldy + token * 2;
    if (row0 + g < p.rows) put8(to, low, p.tokens - token);
    if (row0 + g + 8 < p.rows) put8(to + 8ll * p.ldy, high, p.tokens - token);
#endif
  }
}
#endif

#if OUT
// Who writes a box of BOX lines together: a warpgroup, or a warp, whose 16 rows of a feature-major block lie side by side.
#define TEAM (2 * BOX)
__device__ __forceinline__ void sync_team(int group) {
  if (BOX == 64)
    sync_some<128>(group + 2);
  else
    __syncwarp();
}

// The results of a warpgroup, 64 x 64 at a time through swizzled shared memory: the copy engine writes them while the next
// tile is under way, and leaves out what lies beyond D. `group` is the warpgroup, `row0` and `n0` its first row and token,
// `slot` the next of OUT buffers.
template <bool BIAS>
__device__ __forceinline__ void send(const Problem& p, const Second& second, const Map& map, unsigned smem, const Sums& acc, int group, int row0, int n0, int& slot) {
  static_assert(BOX == 64 || (BOX == 16 && !Y_TOKENS));
  int thread = threadIdx.x & 127, warp = thread >> 5, lane = thread & 31;
  int line = lane & 7, other = lane >> 3 & 1;  // of the 8 x 8 matrices that stmatrix writes: rows 0-7 and 8-15, two by two
#pragma unroll
  for (int i = 0; i < (GATED ? 1 : MT); ++i) {
    TwoRows<BIAS> rows(p, second, row0 + i * 64 + warp * 16 + (lane >> 2));
#pragma unroll
    for (int part = 0; part < NP * NB / 64; ++part) {
      unsigned block = smem + STAGES * B_BYTES + (group * OUT + slot) * BLOCK;
      if (++slot == OUT) slot = 0;
      if (thread % TEAM == 0) wait_until_read<OUT - 1>();
      sync_team(group);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const Sum* d = acc[i * NP + part / (NB / 64)] + 4 * (part % (NB / 64) * 8 + j);
        float2 one = scales_of(p, n0 + part * 64 + j * 8 + (lane & 3) * 2), two = scales_of(p, n0 + part * 64 + j * 8 + 8 + (lane & 3) * 2);
        unsigned w[4] = {rows.low(d, one), rows.high(d, one), rows.low(d + 4, two), rows.high(d + 4, two)};
        int eight = j + (lane >> 4);  // tokens, in the block
#if Y_TOKENS
        stmatrix<true>(block + (eight * 8 + line) * 128 + (((warp * 2 + other) ^ line) << 4), w);
#else
        stmatrix<false>(block + (warp * 16 + other * 8 + line) * 128 + ((eight ^ line) << 4), w);
#endif
      }
      fence_async();
      sync_team(group);
      if (thread % TEAM == 0) {
        int r = row0 + i * 64, n = n0 + part * 64;
        int line = thread / TEAM * BOX;
        tensor_store(&map, Y_TOKENS ? r : n, (Y_TOKENS ? n : r) + line, block + line * 128);
      }
    }
  }
}
#endif
