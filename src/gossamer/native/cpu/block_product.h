// out = act(x @ A.T + bias) for compressed rows of blocks; one thread's share. Few tokens: block_lanes.h.
//
// Panels, as in product.h: N = T * W tokens in the lanes. A line of a panel is loaded once for R rows of a block, and a
// value once for N tokens: T + R loads for T * R multiply-adds, so that the multiply-adds bind, not the loads. The sums of
// R rows stay in registers from the first block of a row to the last.
// Through F.linear, transposes and all, 80 % sparse, on one thread of Zen 4 with AVX-512 (FMA ceiling 117 GFLOP/s):
// 4x4 0.72 to 0.75 of the ceiling at 128 and 1024 tokens, 8x8 to 32x32 0.68 to 0.79, dense (MKL) 0.75 to 0.82. Blocks of
// one row share no line, and each line comes from the second-level cache: 1x4 0.38. Tried and no better for these: tiles of 64 or 128
// columns (rows have a few blocks in each: branches), T = 4.

// Rows [i, i + R) of row b of blocks, for a panel of T * W tokens.
template <int W, int T, int R>
INLINE void block_strip(const Blocks& a, int64_t b, int64_t i, const float* panel, float* sums) {
  constexpr int N = T * W, U = R == 1 ? 2 : 1;  // U columns at a time, each with sums of its own: chains of FMAs
  const int64_t width = a.width, size = a.height * width;
  Vec<W> acc[U][R][T];
#pragma GCC unroll 2
  for (int u = 0; u < U; u++)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) acc[u][r][t] = Vec<W>{};
  const auto column = [&](const float* v, const float* x, Vec<W>(&sum)[R][T]) __attribute__((always_inline)) {
    Vec<W> line[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) line[t] = load<W>(x + t * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Vec<W> w = broadcast<W>(v[r * width]);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) sum[r][t] += w * line[t];
    }
  };
  const float* v = a.block(a.pos[b]) + i * width;
  for (int64_t k = a.pos[b]; k < a.pos[b + 1]; k++, v += size) {
    const float* x = panel + a.crd[k] * width * N;
    int64_t j = 0;
    if (R >= 8)  // strips skip over the block's other rows, which the processor doesn't foresee
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) __builtin_prefetch(v + size + r * width);
    for (; j + U <= width; j += U, x += U * N)
#pragma GCC unroll 2
      for (int u = 0; u < U; u++) column(v + j + u, x + u * N, acc[u]);
    if (U > 1 && j < width) column(v + j, x, acc[0]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) store<W>(sums + r * N + t * W, U > 1 ? acc[0][r][t] + acc[U - 1][r][t] : acc[0][r][t]);
}

// Columns of x as lines of one panel; those behind the last column, which padded blocks name, are zeros.
template <int W, int T>
static void pack_block_panel(const float* x, int64_t ldx, int64_t tokens, int64_t cols, int64_t lines, float* panel) {
  constexpr int N = T * W;
  if (cols) pack_panel<W, T>(x, ldx, tokens, 0, cols, panel);
  memset(panel + cols * N, 0, (lines - cols) * N * sizeof(float));
}

// Row b of blocks: as many rows at a time as the registers hold the sums of, then fewer.
template <int W, int T>
static void block_row(const Blocks& a, int64_t b, const float* panel, float* sums) {
  constexpr int N = T * W;
  constexpr bool EIGHT = T == 1 || WIDTH == 16;
  for (int64_t i = 0; i < a.height;) {
    const int64_t left = a.height - i;
    if (EIGHT && left >= 8) block_strip<W, T, EIGHT ? 8 : 4>(a, b, i, panel, sums + i * N), i += 8;
    else if (left >= 4) block_strip<W, T, 4>(a, b, i, panel, sums + i * N), i += 4;
    else if (left >= 2) block_strip<W, T, 2>(a, b, i, panel, sums + i * N), i += 2;
    else block_strip<W, T, 1>(a, b, i, panel, sums + i * N), i++;
  }
}

// Rows [b0, b1) of blocks for up to T * W tokens.
template <int W, int T>
static void blocks_by_panels(const BlockProduct& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1) {
  constexpr int N = T * W;
  const Blocks& a = p.a;
  const int64_t lines = a.across() * a.width, chunk = rows_of_blocks(a);
  float* panel = scratch((((lines + 1) + chunk * a.height) * N + room(a, b0, b1)) * sizeof(float));
  float *sums = panel + (lines + 1) * N, *wide = sums + chunk * a.height * N;
  pack_block_panel<W, T>(p.x + first * p.ldx, p.ldx, tokens, a.cols, lines, panel);
  for (int64_t from = b0; from < b1; from += chunk) {
    const int64_t to = smaller(from + chunk, b1);
    const Blocks some = widened(a, from, to, wide);
    for (int64_t b = from; b < to; b++) block_row<W, T>(some, b, panel, sums + (b - from) * a.height * N);
    const int64_t row = from * a.height, count = smaller(to * a.height, a.rows) - row;
    unpack_panel<W, T>(sums, count, row, nullptr, p.bias, p.activation, p.out + first * p.ldo, p.ldo, tokens);
  }
}

// Measured on Zen 4, with AVX-512 and with AVX2, blocks of 1x4 to 32x32: lanes win up to 4 tokens, panels from 5 on.
static bool by_lanes(const BlockProduct& p) { return p.a.width % 4 == 0 && p.tokens <= 4; }

constexpr int64_t PANEL_TOKENS = 2 * WIDTH;  // at least the four of block_lanes.h

static int64_t chunks(const Blocks& a) { return (a.down() + rows_of_blocks(a) - 1) / rows_of_blocks(a); }

static int64_t block_items(const BlockProduct& p) {
  return (p.tokens + PANEL_TOKENS - 1) / PANEL_TOKENS * chunks(p.a);
}

static void block_panels(const BlockProduct& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1) {
  if (WIDTH > 8 && tokens <= 8) return blocks_by_panels<WIDTH < 8 ? WIDTH : 8, 1>(p, first, tokens, b0, b1);
  if (tokens <= WIDTH) return blocks_by_panels<WIDTH, 1>(p, first, tokens, b0, b1);
  blocks_by_panels<WIDTH, 2>(p, first, tokens, b0, b1);
}

// Item i: tokens i / chunks, rows i % chunks. Neighbours share a packed panel.
static void block_product(const BlockProduct& p, int64_t begin, int64_t end) {
  const int64_t each = chunks(p.a), rows = rows_of_blocks(p.a);
  if (by_lanes(p)) return blocks_lanes(p, begin * rows, smaller(end * rows, p.a.down()));
  while (begin < end) {
    const int64_t t = begin / each, c0 = begin % each, c1 = smaller(end - t * each, each), first = t * PANEL_TOKENS;
    const int64_t tokens = smaller(p.tokens - first, PANEL_TOKENS), b1 = smaller(c1 * rows, p.a.down());
    block_panels(p, first, tokens, c0 * rows, b1);
    begin = t * each + c1;
  }
}
