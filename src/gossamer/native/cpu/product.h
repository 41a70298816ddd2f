// out = act(x @ A.T + bias) for packed rows A and two or more tokens; one thread's share.
//
// For every N = T * W tokens: transpose x into panels (a line of N tokens for each column), then, block by block of rows
// and tile by tile of columns, add  value * line of the column  into the line of the row; transpose back.
//
// Floor, for one value and W tokens: one FMA and one load of the activations; for one value: its way to all lanes, and
// one byte of index. Counted on Zen 4 (cycles; a 512-bit FMA takes one, and so does a 512-bit load):
//   8 FMAs that load their activations                                    8.0
//   the same + 4 permutes (two FMAs a value)                              8.0
//   the same + 4 byte loads of columns                                    8.6      and with 8: 10.2
//   the same with the 4 columns in one load, taken apart by shifts        8.5
//   4 broadcasts from memory instead of the permutes                     10.4      (they take a permute's port as well)
//   a 512-bit store more                                                 +1.0
//   the loop itself on memory of its own: columns that differ, values that run on   9.8: loads meet in a bank
// So four values are loaded at once and spread by permutes, four columns by one load, and T = 2 is enough. R rows go
// together to hide the latency of an FMA (R * T chains, 8 are needed on Intel, 4 on Zen 4).
// Bytes: 5 a value for each N tokens; for a row of a tile 2 N * 4 of sums, from the second-level cache and back: 8 cycles,
// the 32 bytes a cycle between the two caches, against 24 FMAs at 95 % in a tile of 240 columns.
// Reached, cycles an FMA (T = 2; 768x768, 128 tokens, in cache): 1.31 at 50 %, 1.37 at 75 %, 1.47 at 90 %, 1.62 at 95 %,
// n:m; transposes come on top (panel.h). docs/explanation/cpu.md has the shares of the FMA ceiling through F.linear.
// Tried, one at a time in one process, and no better (cycles an FMA; 50 % / 90 % / 95 %):
//   one load for each column                       1.45 / 1.58 / 1.77   against 1.33 / 1.46 / 1.63
//   asking for the next rows' sums                 1.34 / 1.51 / 1.74
//   three vectors of tokens (T = 3)                1.36 / 1.56 / 1.78
//   four (T = 4)                                   1.41 / 1.72 / 1.87   the panel fills the first-level cache
//   eight rows at once                             1.52 / 1.67 / 1.93
//   two blocks of rows for each tile of a panel    the same
//   tiles of 64, 96, 160, 192 columns at 50 %      1.45, 1.43, 1.42, 1.52  against 1.42 of 128
//   of the kernel before this one: 256-bit vectors (a quarter slower); no sorting by count (a mispredicted branch a row)
// Rows that share activations need the same columns in every window; two rows of a 2:4 pattern share half of them, of a
// 1:10 a tenth. Four FMAs on two loads take 4.0 cycles instead of 4.3: not worth an order of rows of its own.

// Places [from, from + count) of the group after this one.
template <class V>
INLINE void ask_for_next(const Rows& a, int64_t b, int64_t k, int64_t g, int64_t from, int64_t count) {
  if (g + 1 == a.groups()) k++, g = -1;
  if (k == a.tiles()) return;
  const int64_t first = a.first(b, k, g + 1) * LANES + from;
  for (const V *v = a.first_value<V>() + first, *end = v + count; v < end; v += 64 / sizeof(V)) __builtin_prefetch(v);
  for (const uint8_t *c = a.crd + first, *end = c + count; c < end; c += 64) __builtin_prefetch(c);
}

// `fresh`: these rows were not read before in this call, so their values are asked for one group ahead (1.4 times as fast
// at 16 tokens of n:m, 1.2 times at 32, when the weight is not in the second-level cache; 3 % slower when it is).
template <int W, int T, int R, class V>
static void multiply_tile(const Rows& a, int64_t b, int64_t k, const float* panel, float* sums, bool fresh) {
  constexpr int N = T * W;
  constexpr int64_t WHOLE = int64_t(1) << 40;  // more steps than a tile has: it is one window
  const int64_t groups = a.groups();
  const auto rows = [&](const int32_t* row, int64_t place, int64_t steps, auto back) __attribute__((always_inline)) {
    Vec<W> acc[R][T];
    strip<W, T, R, false, back.value>(a.first_value<V>() + place, a.crd + place, steps, panel, 0, WHOLE, acc);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      float* line = sums + int64_t(row[r]) * N;
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) store<W>(line + t * W, k ? acc[r][t] + load<W>(line + t * W) : acc[r][t]);
    }
  };
  for (int64_t g = 0; g < groups; g++) {
    const int32_t* row = a.row_of(b, k, g);
    const int64_t steps = a.steps(b, k, g), first = a.first(b, k, g) * LANES;
    if (!steps && k) continue;
    for (int s = 0; s < LANES; s += R) {
      if (fresh) ask_for_next<V>(a, b, k, g, s * steps, R * steps);
      if (s / R % 2) rows(row + s, first + s, steps, std::true_type{});
      else rows(row + s, first + s, steps, std::false_type{});
    }
  }
}

// Blocks [b0, b1) of rows for up to T * W tokens.
template <int W, int T, int R>
static void multiply_tokens(const Product& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1, bool fresh) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t tiles = a.tiles(), panel = a.lines() * N;
  float* panels = scratch((tiles * panel + a.block * N) * sizeof(float));
  float* sums = panels + tiles * panel;
  for (int64_t k = 0; k < tiles; k++) {
    pack_panel<W, T>(p.x + first * p.ldx, p.ldx, tokens, k * a.tile, a.width(k), panels + k * panel);
    memset(panels + k * panel + a.tile * N, 0, N * sizeof(float));
  }
  for (int64_t b = b0; b < b1; b++) {
    if (!tiles) memset(sums, 0, a.block * N * sizeof(float));  // else the first tile starts them
    for (int64_t k = 0; k < tiles; k++)
      if (a.bytes) multiply_tile<W, T, R, int8_t>(a, b, k, panels + k * panel, sums, fresh);
      else if (a.halves) multiply_tile<W, T, R, Bf16>(a, b, k, panels + k * panel, sums, fresh);
      else multiply_tile<W, T, R, float>(a, b, k, panels + k * panel, sums, fresh);
    unpack_panel<W, T>(sums, a.height(b), b * a.block, a.scale, p.bias, p.activation, p.out + first * p.ldo, p.ldo, tokens);
  }
}
