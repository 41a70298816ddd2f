// out = act(x @ A.T + bias) for packed rows A and two or more tokens; one thread's share.
//
// For every N = T * W tokens: transpose x into panels (a line of N tokens for each column), then, block by block of rows
// and tile by tile of columns, add  value * line of the column  into the line of the row; transpose back.
//
// For any pattern; regular ones have regular.h. strip.h, which both share, states the floor of the loop.
// Bytes: 5 a value for each N tokens, 4.5 where columns are told by steps; for a row of a tile 2 N * 4 of sums, from the
// second-level cache and back: 8 cycles, the 32 bytes a cycle between the two caches, against 24 FMAs at 95 % in a tile of
// 240 columns. docs/explanation/cpu.md has the times and the shares of the FMA ceiling through F.linear.
// Tried, one at a time in one process, with an earlier loop (cycles an FMA at 50 % / 90 % / 95 %), and no better:
//   one load for each column                       1.45 / 1.58 / 1.77   against 1.33 / 1.46 / 1.63
//   asking for the next rows' sums                 1.34 / 1.51 / 1.74
//   three vectors of tokens (T = 3)                1.36 / 1.56 / 1.78
//   four (T = 4)                                   1.41 / 1.72 / 1.87   the panel fills the first-level cache
//   two blocks of rows for each tile of a panel    the same
//   tiles of 64, 96, 160, 192 columns at 50 %      1.45, 1.43, 1.42, 1.52  against 1.42 of 128
//   of the kernel before: 256-bit vectors (a quarter slower); no sorting by count (a mispredicted branch a row)
// With this loop eight rows at once are the same as four, but for 50 %, where they are 5 % slower.
// Rows that share activations need the same columns in every window; two rows of a 2:4 pattern share half of them, of a
// 1:10 a tenth. Four FMAs on two loads take 4.0 cycles instead of 4.3: not worth an order of rows of its own.

// Places [from, from + count) of the group after this one.
template <class V>
INLINE void ask_for_next(const Rows& a, int64_t b, int64_t k, int64_t g, int64_t from, int64_t count) {
  if (g + 1 == a.groups()) k++, g = -1;
  if (k == a.tiles()) return;
  const int64_t first = a.first(b, k, g + 1) * LANES + from;
  for (const V *v = a.first_value<V>() + first, *end = v + count; v < end; v += 64 / sizeof(V)) __builtin_prefetch(v);
  const uint8_t *c = a.crd + (a.nibbles() ? first / 2 : first), *end = c + (a.nibbles() ? count / 2 : count);
  for (; c < end; c += 64) __builtin_prefetch(c);
}

constexpr int64_t WHOLE = int64_t(1) << 40;  // more steps than a tile has: it is one window

// `fresh`: these rows were not read before in this call, so their values are asked for one group ahead (1.4 times as fast
// at 16 tokens of n:m, 1.2 times at 32, when the weight is not in the second-level cache; 3 % slower when it is).
template <int W, int T, int R, bool NEAR, class V, class X>
static void multiply_tile(const Rows& a, int64_t b, int64_t k, const X* panel, float* sums, bool fresh) {
  constexpr int N = T * W;
  const int64_t groups = a.groups();
  const auto rows = [&](const int32_t* row, int64_t place, int64_t steps, auto back) __attribute__((always_inline)) {
    Vec<W> acc[R][T];
    const V* v = a.first_value<V>() + place;
#if defined(HALF_DOTS)
    if constexpr (std::is_same<X, uint16_t>::value)
      half_strip<R, false, back.value>((const uint16_t*)v, a.crd + place, steps, panel, panel + a.tile * N, 0, WHOLE, acc);
    else
#endif
    if constexpr (NEAR) near_strip<W, T, R>(v, a.crd + place / LANES / 2 * LANES + place % LANES, steps, panel, acc);
    else strip<W, T, R, false, back.value>(v, a.crd + place, steps, panel, 0, WHOLE, 0, acc);
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
      if (!NEAR && s / R % 2) rows(row + s, first + s, steps, std::true_type{});
      else rows(row + s, first + s, steps, std::false_type{});
    }
  }
}

// The same, row by row and place by place, without those that have no value: for activations that are not finite, where
// columns are told by steps and such a place names a line of others.
template <int W, int T, class V>
static void multiply_careful(const Rows& a, int64_t b, int64_t k, const float* panel, float* sums) {
  constexpr int N = T * W;
  for (int64_t g = 0; g < a.groups(); g++) {
    const int32_t* row = a.row_of(b, k, g);
    const int64_t first = a.first(b, k, g), steps = a.steps(b, k, g);
    Columns at(a);
    for (int l = 0; !k && l < LANES; l++) memset(sums + int64_t(row[l]) * N, 0, N * sizeof(float));
    for (int64_t j = first; j < first + steps; j++) {
      at.go_to(j);
      for (int l = 0; l < LANES; l++)
        for (int t = 0; at.entry[l] && t < T; t++) {
          float* sum = sums + int64_t(row[l]) * N + t * W;
          const float w = float(a.first_value<V>()[j * LANES + l]);
          store<W>(sum, load<W>(sum) + w * load<W>(panel + int64_t(at.column[l]) * N + t * W));
        }
    }
  }
}

// Blocks [b0, b1) of rows for up to T * W tokens.
template <int W, int T, int R>
static void multiply_tokens(const Product& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1, bool fresh) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t tiles = a.tiles(), panel = a.lines() * N;
  float* panels = scratch((N + tiles * panel + a.block * N) * sizeof(float)) + N;
  float* sums = panels + tiles * panel;
  memset(panels - N, 0, N * sizeof(float));
  bool finite = true;
  for (int64_t k = 0; k < tiles; k++) {
    finite &= p.image ? pack_pixels<W, T>(*p.image, first, tokens, k * a.tile, a.width(k), a.window, panels + k * panel)
                      : pack_panel<W, T>(p.x + first * p.ldx, p.ldx, tokens, k * a.tile, a.width(k), panels + k * panel);
    memset(panels + k * panel + a.width(k) * N, 0, (a.tile + 1 - a.width(k)) * N * sizeof(float));
  }
#if defined(HALF_DOTS)
  const bool dots = N == 32 && by_half_dots(p);
  for (int64_t k = 0; dots && k < tiles; k++) narrow_lines(panels + k * panel, a.lines());
#endif
  const auto tile = [&](int64_t b, int64_t k, auto value) {
    using V = decltype(value);
#if defined(HALF_DOTS)
    if constexpr (N == 32 && W == 16 && std::is_same<V, Bf16>::value)
      if (dots) return multiply_tile<W, T, 8, false, V>(a, b, k, (const uint16_t*)(panels + k * panel), sums, fresh);
#endif
    const float* from = panels + k * panel;
    if (!a.near()) multiply_tile<W, T, R, false, V>(a, b, k, from, sums, fresh);
    else if (finite) multiply_tile<W, T, R < 4 ? R : 4, true, V>(a, b, k, from, sums, fresh);  // a pointer for each row
    else multiply_careful<W, T, V>(a, b, k, from, sums);
  };
  for (int64_t b = b0; b < b1; b++) {
    if (!tiles) memset(sums, 0, a.block * N * sizeof(float));  // else the first tile starts them
    for (int64_t k = 0; k < tiles; k++)
      if (a.bytes) tile(b, k, int8_t{});
      else if (a.halves) tile(b, k, Bf16{});
      else tile(b, k, 0.0f);
    if (p.image) put_pixels<W, T>(p, sums, a.height(b), b * a.block, first, tokens);
    else
      unpack_panel<W, T>(sums, a.height(b), b * a.block, a.scale, p.bias, p.activation, p.out + first * p.ldo, p.ldo, tokens);
  }
}
