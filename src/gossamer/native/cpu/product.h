// out = act(x @ A.T + bias) for packed rows A and two or more tokens; one thread's share.
//
// For every N = T * W tokens: transpose x into panels (a line of N tokens for each column), then, block by block of rows
// and tile by tile of columns, add  value * line of the column  into the line of the row; transpose back.
//
// Floor, for one value and W tokens: one FMA and one load of the activations; for one value: one load to all lanes and
// one byte of index. Zen 4 and Intel since Skylake start as many vector loads as FMAs in a cycle, so at most
// T / (T + 1/2) of the FMA ceiling can be had where a broadcast takes half a slot: 0.89 for T = 4. A tile of 128 columns
// x 64 tokens is 32 KiB. R rows go together to hide the latency of an FMA (R * T chains, 8 are needed).
// Bytes: 5 a value for each N tokens, 2 N * 4 for the sums of a row in each tile; both from the second-level cache.
// Reached on Zen 4 (AVX-512, 3072x768, one thread, ceiling 115 GFLOP/s): 0.61 at 90 %, 0.71 at 50 %.
// Tried and worse: T = 2 (0.57 and 0.66: broadcasts), tiles of 64 columns (0.55 at 90 %: sums go in and out twice as
// often), no sorting by count (a mispredicted branch for each row of a tile).

template <int W, int T, int R>
static void multiply_tile(const Rows& a, int64_t b, int64_t k, const float* panel, float* sums) {
  constexpr int N = T * W;
  const int64_t groups = a.groups(), at = (b * a.tiles() + k) * groups;
  const int32_t *pos = a.pos + at, *row = a.row + at * LANES;
  for (int64_t g = 0; g < groups; g++, row += LANES) {
    const int64_t steps = pos[g + 1] - pos[g];
    if (!steps) continue;
    const float* values = a.values + int64_t(pos[g]) * LANES;
    const uint8_t* crd = a.crd + int64_t(pos[g]) * LANES;
    if (g + 1 < groups)
      for (int l = LANES; l < 2 * LANES; l++) {
        const float* next = sums + int64_t(row[l]) * N;
        for (int t = 0; t < N; t += 16) __builtin_prefetch(next + t, 1);
      }
    for (int s = 0; s < LANES; s += R) {
      Vec<W> acc[R][T];
      float* line[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        line[r] = sums + int64_t(row[s + r]) * N;
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) acc[r][t] = load<W>(line[r] + t * W);
      }
      const float* v = values + s;
      const uint8_t* c = crd + s;
      for (int64_t j = 0; j < steps; j++, v += LANES, c += LANES)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const Vec<W> w = broadcast<W>(v[r]);
          const float* x = panel + size_t(c[r]) * N;
#pragma GCC unroll 4
          for (int t = 0; t < T; t++) acc[r][t] += w * load<W>(x + t * W);
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
  const int64_t tiles = a.tiles(), panel = (a.tile + 1) * N;
  float* panels = scratch((tiles * panel + a.block * N) * sizeof(float));
  float* sums = panels + tiles * panel;
  const float* x = p.x + first * p.ldx;
  for (int64_t k = 0; k < tiles; k++) {
    const int64_t count = a.cols - k * a.tile < a.tile ? a.cols - k * a.tile : a.tile;
    pack_panel<W, T>(x, p.ldx, tokens, k * a.tile, count, panels + k * panel);
    memset(panels + k * panel + a.tile * N, 0, N * sizeof(float));
  }
  for (int64_t b = b0; b < b1; b++) {
    const int64_t count = a.rows - b * a.block < a.block ? a.rows - b * a.block : a.block;
    memset(sums, 0, a.block * N * sizeof(float));
    for (int64_t k = 0; k < tiles; k++) multiply_tile<W, T, R>(a, b, k, panels + k * panel, sums);
    unpack_panel<W, T>(sums, count, b * a.block, p.bias, p.activation, p.out + first * p.ldo, p.ldo, tokens);
  }
}
