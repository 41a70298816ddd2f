// out = act(x @ A.T + bias) for regular patterns (n:m) and two or more tokens, by panels; one thread's share.
//
// As product.h, with what a regular pattern allows: rows are in their own order, so the last tile's sums of sixteen rows go
// to out while the first-level cache has them; two columns are in a byte; nothing is sorted, and every row is as long.
// Floor, for one value and W tokens: one FMA and one load of activations; Zen 4 starts one of each in a cycle.
// Reached, cycles an FMA without the transposes (T = 2, 768x768): 1.29 at 2:4, 1.38 at 1:4, 1.45 at 1:10, 1.52 at 1:20.
// With all 8 rows reading the same line it is 1.1; with lines that differ, but without loads of values and columns, 1.2.
//
// What made it faster than the kernel before, which read the same pattern by product.h (time of 1:20, 768 columns):
//   sums start at 0 and memory is added at the end: no FMA waits for the second-level cache       -7 %
//   every other R rows go through the tile backwards: what was read last is still there            -7 %
//   tiles of 264 columns, all of one size: 768 are 3 x 260, not 3 x 240 and one of 48              -5 %
//   sums of the last tile to out at once, its next lines asked for to be written                   -5 %
//   no line of zeros behind each window (below): transposes store without gaps                     -2 %
//   four values to all quarters by one load, and spread by shuffles inside of a quarter            -3 %
// Tried and no better: one vector of tokens, 8 rows and no tiles (1:20: as fast as 32 tokens with tiles of 400, slower now);
// four vectors (1.9 instead of 1.5 at 1:20, the panel is twice as large); rotations instead of shifts of columns; asking
// for the next tokens' lines of x during the product (1 to 3 % slower); stores to out that go round the cache (the same).
//
// A place without an entry has the value 0 and names the line behind its window, whatever that holds: 0 times it is 0 as
// long as it is finite. Packing says whether all are; if not, such places are left out one by one.

// R rows of a tile: from `before`, if there is something, to `after`.
template <int W, int T, int R, bool NIBBLES, bool BACK, class V>
INLINE void regular_rows(const Rows& a, const V* v, const uint8_t* c, int64_t steps, const float* panel,
                         const float* before, float* after) {
  Vec<W> acc[R][T];
  strip<W, T, R, NIBBLES, BACK>(v, c, steps, panel, a.window, a.per, acc);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const int at = (r * T + t) * W;
      store<W>(after + at, before ? acc[r][t] + load<W>(before + at) : acc[r][t]);
    }
}

// The same for one row, its places being at `place` and each LANES more, without those that have no entry.
template <int W, int T, class V>
static void careful_row(const Rows& a, int64_t place, int64_t steps, bool back, const float* panel, const float* before,
                        float* after) {
  constexpr int N = T * W;
  Vec<W> acc[T] = {};
  for (int64_t i = 0; i < steps; i++) {
    const int64_t j = back ? steps - 1 - i : i, at = place + j * LANES, code = a.code(at);
    if (code == a.window) continue;
    const float* x = panel + (j / a.per * a.window + code) * N;
    for (int t = 0; t < T; t++) acc[t] += float(a.first_value<V>()[at]) * load<W>(x + t * W);
  }
  for (int t = 0; t < T; t++) store<W>(after + t * W, before ? acc[t] + load<W>(before + t * W) : acc[t]);
}

// `count` places from `first` on; `from` of them are skipped.
template <class V> INLINE void ask_for(const Rows& a, int64_t first, int64_t count) {
  const V* v = a.first_value<V>() + first;
  for (int64_t i = 0; i < count; i += 64 / sizeof(V)) __builtin_prefetch(v + i);
  const uint8_t *c = a.crd + (a.nibbles() ? first / 2 : first), *end = c + (a.nibbles() ? count / 2 : count);
  for (; c < end; c += 64) __builtin_prefetch(c);
}

// Tile k of block b. Sums stay in `sums` until the last tile: then sixteen rows at a time go to `hot`, and out.
template <int W, int T, int R, bool NIBBLES, class V>
static void regular_tile_of(const Product& p, int64_t token, int64_t tokens, int64_t b, int64_t k, const float* panel,
                            float* sums, float* hot, bool finite, bool fresh) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t groups = a.groups();
  const bool last = k + 1 == a.tiles();
  for (int64_t g = 0; g < groups; g++) {
    const int64_t row = b * a.block + g * LANES, steps = a.steps(b, k, g), first = a.first(b, k, g) * LANES;
    if (row >= a.rows) return;
    const int64_t next = g + 1 < groups ? a.first(b, k, g + 1) : last ? -1 : a.first(b, k + 1, 0);
    for (int s = 0; s < LANES; s += R) {
      if (fresh && next >= 0) ask_for<V>(a, next * LANES + s * steps, R * steps);
      float *mine = sums + (g * LANES + s) * N, *to = last ? hot + s * N : mine;
      const float* before = k ? mine : nullptr;
      const V* v = a.first_value<V>() + first + s;
      const uint8_t* c = a.crd + (NIBBLES ? first / 2 : first) + s;
      if (!finite)
        for (int r = 0; r < R; r++)
          careful_row<W, T, V>(a, first + s + r, steps, s / R % 2, panel, before ? before + r * N : nullptr, to + r * N);
      else if (s / R % 2) regular_rows<W, T, R, NIBBLES, true>(a, v, c, steps, panel, before, to);
      else regular_rows<W, T, R, NIBBLES, false>(a, v, c, steps, panel, before, to);
    }
    if (last)
      unpack_panel<W, T>(hot, a.rows - row < LANES ? a.rows - row : LANES, row, a.scale, p.bias, p.activation,
                         p.out + token * p.ldo, p.ldo, tokens);
  }
}

// Blocks [b0, b1) of rows for up to T * W tokens from `token` on.
template <int W, int T, int R, class V>
static void multiply_regular(const Product& p, int64_t token, int64_t tokens, int64_t b0, int64_t b1, bool fresh) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t lines = a.tiles() * a.tile + 1;  // all columns in one panel, and one line behind the last window
  float* panel = scratch((lines + a.block + LANES) * N * sizeof(float));
  float *sums = panel + lines * N, *hot = sums + a.block * N;
  const bool finite = pack_panel<W, T>(p.x + token * p.ldx, p.ldx, tokens, 0, a.cols, panel);
  memset(panel + a.windows() * a.window * N, 0, N * sizeof(float));
  for (int64_t b = b0; b < b1; b++)
    for (int64_t k = 0; k < a.tiles(); k++) {
      const float* tile = panel + k * a.tile * N;
      if (a.nibbles()) regular_tile_of<W, T, R, true, V>(p, token, tokens, b, k, tile, sums, hot, finite, fresh);
      else regular_tile_of<W, T, R, false, V>(p, token, tokens, b, k, tile, sums, hot, finite, fresh);
    }
}
