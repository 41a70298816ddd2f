// out = act(x @ A.T + bias) for packed rows A and two or more tokens; one thread's share.
//
// For every N = T * W tokens: transpose x into panels (a line of N tokens for each column), then, block by block of rows
// and tile by tile of columns, add  value * line of the column  into the line of the row; transpose back.
//
// Floor, for one value and W tokens: one FMA and one load of the activations; for one value: its way to all lanes, and
// one byte of index. Zen 4 and Intel since Skylake start as many vector loads as FMAs in a cycle, and a broadcast from
// memory is a load like another: T / (T + 1) of the FMA ceiling at best. So with AVX-512 four values are loaded at once
// and spread by a permute, which has a port of its own on Zen 4: 0.97 at best, and T = 2 is enough. R rows go together
// to hide the latency of an FMA (R * T chains, 8 are needed on Intel, 4 on Zen 4).
// Bytes: 5 a value for each N tokens, 2 N * 4 for the sums of a row in each tile; both from the second-level cache.
// Through F.linear, transposes and all, 128 tokens: 0.58 at 50 %, 0.46 at 90 %, 0.35 at 95 % (docs/explanation/cpu.md).
// This loop alone reaches on Zen 4 (AVX-512, 3072x768, one thread; FMA ceiling 117 GFLOP/s, measured by
// benchmarks/ceilings.cpp): 0.75 at 50 %, 0.64 at 90 %, 0.53 at 95 %. A row of a tile costs 2 ns + 0.70 ns a value
// for 32 tokens, against 0.55 of pure FMAs: the 2 ns are its sums, in and out of the second-level cache.
// Tried and worse: broadcasts from memory (0.70 and 0.61); T = 4 with tiles of 64 columns (0.55 at 90 %: sums go in and
// out twice as often); 256-bit vectors (0.55); no sorting by count (a mispredicted branch for each row of a tile).

// R values at once, and one of them to all lanes.
template <int W, int R> struct Spread {
  template <class V> INLINE_MEMBER const V* load(const V* v) const { return v; }
  template <class V> INLINE_MEMBER Vec<W> to_all(const V* v, int r) const { return broadcast<W>(float(v[r])); }
};
#if defined(__AVX512F__)
template <> struct Spread<16, 4> {
  __m512i lane[4];
  INLINE_MEMBER Spread() {
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      lane[r] = _mm512_set1_epi32(r);
      asm("" : "+v"(lane[r]));  // a register each: left alone, gcc makes broadcasts of memory again
    }
  }
  template <class V> INLINE_MEMBER __m512 load(const V* v) const { return _mm512_castps128_ps512(load4(v)); }
  INLINE_MEMBER Vec<16> to_all(__m512 v, int r) const {
    __m512 w = _mm512_permutexvar_ps(lane[r], v);
    asm("" : "+v"(w));
    return (Vec<16>)w;
  }
};
#endif

template <int W, int T, int R, bool REGULAR, class V>
static void multiply_tile(const Rows& a, int64_t b, int64_t k, const float* panel, float* sums) {
  constexpr int N = T * W;
  const int64_t groups = a.groups(), jump = (a.window + 1) * N;
  for (int64_t g = 0; g < groups; g++) {
    const int32_t* row = a.row_of(b, k, g);
    const int64_t steps = a.steps(b, k, g), first = a.first(b, k, g) * LANES;
    if (!steps) continue;
    if (g + 1 < groups)
      for (int l = LANES; l < 2 * LANES; l++)
        for (int t = 0; t < N; t += 16) __builtin_prefetch(sums + int64_t(row[l]) * N + t, 1);
    for (int s = 0; s < LANES; s += R) {
      Vec<W> acc[R][T];
      float* line[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        line[r] = sums + int64_t(row[s + r]) * N;
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) acc[r][t] = load<W>(line[r] + t * W);
      }
      const V* v = a.first_value<V>() + first + s;
      const float* from = panel;
      const uint8_t* c = a.crd + first + s;
      const Spread<W, R> spread;
      int64_t left = a.per;
      for (int64_t j = 0; j < steps; j++, v += LANES, c += LANES) {
        const auto some = spread.load(v);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const Vec<W> w = spread.to_all(some, r);
          const float* x = from + size_t(c[r]) * N;
#pragma GCC unroll 4
          for (int t = 0; t < T; t++) acc[r][t] += w * load<W>(x + t * W);
        }
        if (REGULAR && --left == 0) left = a.per, from += jump;
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) store<W>(line[r] + t * W, acc[r][t]);
    }
  }
}

// Blocks [b0, b1) of rows for up to T * W tokens.
template <int W, int T, int R>
static void multiply_tokens(const Product& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t tiles = a.tiles(), panel = a.lines() * N;
  float* panels = scratch((tiles * panel + a.block * N) * sizeof(float));
  float* sums = panels + tiles * panel;
  for (int64_t k = 0; k < tiles; k++)
    pack_panel<W, T>(p.x + first * p.ldx, p.ldx, tokens, k * a.tile, a.width(k), a.window, a.tile, panels + k * panel);
  for (int64_t b = b0; b < b1; b++) {
    memset(sums, 0, a.block * N * sizeof(float));
    for (int64_t k = 0; k < tiles; k++)
      if (a.bytes) {
        if (a.per) multiply_tile<W, T, R, true, int8_t>(a, b, k, panels + k * panel, sums);
        else multiply_tile<W, T, R, false, int8_t>(a, b, k, panels + k * panel, sums);
      } else if (a.halves) {
        if (a.per) multiply_tile<W, T, R, true, Bf16>(a, b, k, panels + k * panel, sums);
        else multiply_tile<W, T, R, false, Bf16>(a, b, k, panels + k * panel, sums);
      } else {
        if (a.per) multiply_tile<W, T, R, true, float>(a, b, k, panels + k * panel, sums);
        else multiply_tile<W, T, R, false, float>(a, b, k, panels + k * panel, sums);
      }
    unpack_panel<W, T>(sums, a.height(b), b * a.block, a.scale, p.bias, p.activation, p.out + first * p.ldo, p.ldo, tokens);
  }
}
