// out = act(x @ A.T + bias) for regular patterns (n:m) and two or more tokens, by panels; one thread's share.
//
// As product.h, with what a regular pattern allows: rows are in their own order, so the last tile's sums of sixteen rows go
// to out while registers or the first-level cache have them; two columns are in a byte; every row is as long.
// Two shapes of the strip (AVX-512; others have 32 tokens and R rows):
//   up to 86 %    32 tokens x 8 rows, tiles of 132 columns
//   from 87 % on  16 tokens x 16 rows, tiles of 800: the sums of 768 columns never leave the registers, and are transposed
//                 there. A value has one FMA instead of two, and so sixteen of them come by one load.
// Floor, for one value and W tokens: one FMA and one load of activations; Zen 4 starts one of each in a cycle.
// Reached, cycles an FMA without the transposes (768x768, in cache): 1.29 at 2:4, 1.38 at 1:4; the latter shape with them
// 1.8 at 1:10 and 1.9 at 1:20, where product.h had 2.1 and 2.3.
//
// What made it faster than the kernel before, which read the same pattern by product.h (time of 1:20, 768 columns):
//   sums start at 0 and memory is added at the end: no FMA waits for the second-level cache       -7 %
//   every other strip goes through the tile backwards: what was read last is still there           -7 %
//   tiles of one size: 768 columns are not 3 x 240 and one of 48                                   -5 %
//   sums of the last tile to out at once, its next lines asked for to be written                   -5 %
//   16 x 16 instead of 32 x 8                                                                      -5 %
//   no line of zeros behind each window (below): transposes store without gaps                     -2 %
//   four values to all quarters by one load, and spread by shuffles inside of a quarter            -3 %
// Tried and no better: 16 tokens x 8 rows (as fast as 32 x 8), and 16 x 16 with four loads of values (the same); 16 x 16 at
// 50 % and 75 % (5 % slower at 2048 tokens); four vectors of tokens (1.9 instead of 1.5 at 1:20, the panel is twice as
// large); rotations instead of shifts of columns; asking for the next tokens' lines of x during the product (1 to 3 %
// slower: each takes the time of an FMA); stores to out that go round the cache (the same); asking for values inside of
// the strip for 32 x 8 (a tenth slower).
// What is left at 1:20, 2048 tokens: x and out from the third cache or memory are 15 % of the time.
//
// A place without an entry has the value 0 and names the line behind its window, whatever that holds: 0 times it is 0 as
// long as it is finite. Packing says whether all are; if not, such places are left out one by one.

// R rows of a tile: what was there before, if anything, and what the tile adds.
template <int W, int T, int R, bool NIBBLES, bool BACK, class V, class X>
INLINE void regular_rows(const Rows& a, int64_t place, int64_t steps, int64_t ahead, const X* panel, const X* zeros,
                         const float* before, Vec<W> (&acc)[R][T]) {
  const uint8_t* c = a.crd + (NIBBLES ? place / LANES / 2 * LANES + place % LANES : place);
#if defined(HALF_DOTS)
  if constexpr (std::is_same<X, uint16_t>::value)
    half_strip<R, NIBBLES, BACK>((const uint16_t*)(a.first_value<V>() + place), c, steps, panel, zeros, a.window, a.per, acc);
  else
#endif
    strip<W, T, R, NIBBLES, BACK>(a.first_value<V>() + place, c, steps, panel, a.window, a.per, ahead, acc);
  (void)zeros;
  if (!before) return;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[r][t] += load<W>(before + (r * T + t) * W);
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

INLINE void ask_for_columns(const Rows& a, int64_t first, int64_t count) {
  const uint8_t *c = a.crd + (a.nibbles() ? first / 2 : first), *end = c + (a.nibbles() ? count / 2 : count);
  for (; c < end; c += 64) __builtin_prefetch(c);
}

// Tile k of block b. Sums stay in `sums` until the last tile: then sixteen rows at a time go to out, from registers if all
// of them are there, else by `hot`.
template <int W, int T, int R, bool NIBBLES, class V, class X>
static void regular_tile_of(const Product& p, int64_t token, int64_t tokens, int64_t b, int64_t k, const X* panel, const X* zeros,
                            float* sums, float* hot, bool finite, bool fresh) {
  constexpr int N = T * W;
  constexpr bool SQUARE = R == LANES && W == LANES && T == 1;
  const Rows& a = p.a;
  const int64_t groups = a.groups();
  const bool last = k + 1 == a.tiles();
  float* out = p.out + token * p.ldo;
  for (int64_t g = 0; g < groups; g++) {
    const int64_t row = b * a.block + g * LANES, steps = a.steps(b, k, g), first = a.first(b, k, g) * LANES;
    if (row >= a.rows) return;
    const int64_t next = g + 1 < groups ? a.first(b, k, g + 1) : last ? 0 : a.first(b, k + 1, 0);
    const int64_t ahead = fresh && next ? next * LANES - first : 0;
    if (R == LANES) ask_for_columns(a, first + ahead, ahead ? steps * LANES : 0);
    const bool direct = SQUARE && last && finite && !p.image && row + LANES <= a.rows;
    for (int s = 0; s < LANES; s += R) {
      float *mine = sums + (g * LANES + s) * N, *to = last ? hot + s * N : mine;
      const float* before = k ? mine : nullptr;
      if (R < LANES && ahead) {
        const V* v = a.first_value<V>() + first + ahead + s * steps;
        for (int64_t i = 0; i < R * steps; i += 64 / sizeof(V)) __builtin_prefetch(v + i, 0, 2);
        ask_for_columns(a, first + ahead + s * steps, R * steps);
      }
      const bool back = (g * (LANES / R) + s / R) % 2;
      if constexpr (std::is_same<X, float>::value)
        if (!finite) {
          for (int r = 0; r < R; r++)
            careful_row<W, T, V>(a, first + s + r, steps, back, panel, before ? before + r * N : nullptr, to + r * N);
          continue;
        }
      Vec<W> acc[R][T];
      if (back) regular_rows<W, T, R, NIBBLES, true, V>(a, first + s, steps, ahead, panel, zeros, before, acc);
      else regular_rows<W, T, R, NIBBLES, false, V>(a, first + s, steps, ahead, panel, zeros, before, acc);
      if (direct) {
        put_columns<W>(&acc[0][0], a.scale ? a.scale + row : nullptr, p.bias ? p.bias + row : nullptr, p.activation,
                       out + row, p.ldo, tokens);
        continue;
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) store<W>(to + (r * T + t) * W, acc[r][t]);
    }
    if (last && p.image) put_pixels<W, T>(p, hot, a.rows - row < LANES ? a.rows - row : LANES, row, token, tokens);
    else if (last && !direct)
      unpack_panel<W, T>(hot, a.rows - row < LANES ? a.rows - row : LANES, row, a.scale, p.bias, p.activation, out, p.ldo,
                         tokens);
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
  const bool finite = p.image ? pack_pixels<W, T>(*p.image, token, tokens, 0, a.cols, true, panel)
                              : pack_panel<W, T>(p.x + token * p.ldx, p.ldx, tokens, 0, a.cols, panel);
  memset(panel + a.windows() * a.window * N, 0, N * sizeof(float));
  const auto all = [&](auto* from) {
    const auto* zeros = from + a.windows() * a.window * N;
    for (int64_t b = b0; b < b1; b++)
      for (int64_t k = 0; k < a.tiles(); k++) {
        const auto* tile = from + k * a.tile * N;
        if (a.nibbles()) regular_tile_of<W, T, R, true, V>(p, token, tokens, b, k, tile, zeros, sums, hot, finite, fresh);
        else regular_tile_of<W, T, R, false, V>(p, token, tokens, b, k, tile, zeros, sums, hot, finite, fresh);
      }
  };
#if defined(HALF_DOTS)
  if constexpr (N == 32 && W == 16 && R == 8 && std::is_same<V, Bf16>::value)
    if (finite && by_half_dots(p)) {
      narrow_lines(panel, a.windows() * a.window + 1);
      return all((const uint16_t*)panel);
    }
#endif
  all((const float*)panel);
}
