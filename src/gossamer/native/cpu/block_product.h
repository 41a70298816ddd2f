// out = act(x @ A.T + bias) for compressed rows of blocks; one thread's share. Two ways:
//
// Panels, for many tokens: N = T * W tokens in the lanes, as in product.h. A line of a panel is loaded once for R rows of
// a block, and a value once for N tokens: T + R loads for T * R multiply-adds, so the multiply-adds bind, not the loads.
// The sums of R rows stay in registers from the first block of a row to the last.
//
// Lanes along the columns of a block, for few tokens: no transposes, and values are read in the order in which they lie.
// A block narrower than a vector fills it with several of its rows, against the activations of its columns repeated: one
// load of values and one of activations for each T multiply-adds. Widths that are multiples of four; others take panels.

constexpr int64_t BLOCK_ROWS = 64;     // rows of an item, about: their values stay in the second-level cache
constexpr int64_t BLOCK_TOKENS = 64;   // tokens of an item without panels

INLINE int64_t rows_of_blocks(const Blocks& a) { return a.height >= BLOCK_ROWS ? 1 : BLOCK_ROWS / a.height; }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// --- panels

// Rows [i, i + R) of row b of blocks, for a panel of T * W tokens.
template <int W, int T, int R>
INLINE void block_strip(const Blocks& a, int64_t b, int64_t i, const float* panel, float* sums) {
  constexpr int N = T * W;
  const int64_t width = a.width, size = a.height * width;
  Vec<W> acc[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[r][t] = Vec<W>{};
  const float* v = a.values + a.pos[b] * size + i * width;
  for (int64_t k = a.pos[b]; k < a.pos[b + 1]; k++, v += size) {
    const float* x = panel + a.crd[k] * width * N;
    for (int64_t j = 0; j < width; j++, x += N) {
      Vec<W> line[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) line[t] = load<W>(x + t * W);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const Vec<W> w = broadcast<W>(v[r * width + j]);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) acc[r][t] += w * line[t];
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) store<W>(sums + r * N + t * W, acc[r][t]);
}

// Columns of x as lines of one panel; those behind the last column, which padded blocks name, are zeros.
template <int W, int T>
static void pack_block_panel(const float* x, int64_t ldx, int64_t tokens, int64_t cols, int64_t lines, float* panel) {
  constexpr int N = T * W;
  if (cols) pack_panel<W, T>(x, ldx, tokens, 0, cols, 0, cols, panel);
  memset(panel + cols * N, 0, (lines - cols) * N * sizeof(float));
}

// Rows [b0, b1) of blocks for up to T * W tokens; R rows at a time, then fewer.
template <int W, int T, int R>
static void blocks_by_panels(const BlockProduct& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1) {
  constexpr int N = T * W;
  const Blocks& a = p.a;
  const int64_t lines = a.across() * a.width, chunk = rows_of_blocks(a);
  float* panel = scratch(((lines + 1) + chunk * a.height) * N * sizeof(float));
  float* sums = panel + (lines + 1) * N;
  pack_block_panel<W, T>(p.x + first * p.ldx, p.ldx, tokens, a.cols, lines, panel);
  for (int64_t from = b0; from < b1; from += chunk) {
    const int64_t to = smaller(from + chunk, b1);
    for (int64_t b = from; b < to; b++) {
      float* sum = sums + (b - from) * a.height * N;
      int64_t i = 0;
      for (; i + R <= a.height; i += R) block_strip<W, T, R>(a, b, i, panel, sum + i * N);
      if (R > 4 && i + 4 <= a.height) block_strip<W, T, 4>(a, b, i, panel, sum + i * N), i += 4;
      if (R > 2 && i + 2 <= a.height) block_strip<W, T, 2>(a, b, i, panel, sum + i * N), i += 2;
      if (R > 1 && i < a.height) block_strip<W, T, 1>(a, b, i, panel, sum + i * N);
    }
    const int64_t row = from * a.height, count = smaller(to * a.height, a.rows) - row;
    unpack_panel<W, T>(sums, count, row, nullptr, p.bias, p.activation, p.out + first * p.ldo, p.ldo, tokens);
  }
}

// --- lanes along the columns

// D activations, as often as they fit into V lanes.
template <int V, int D> INLINE Vec<V> repeated(const float* x) {
  if constexpr (V == D) return load<V>(x);
#if defined(__AVX512F__)
  if constexpr (V == 16 && D == 8) return (Vec<V>)_mm512_broadcast_f32x8(_mm256_loadu_ps(x));
  if constexpr (V == 16 && D == 4) return (Vec<V>)_mm512_broadcast_f32x4(_mm_loadu_ps(x));
#endif
#if defined(__AVX2__)
  if constexpr (V == 8 && D == 4) return (Vec<V>)_mm256_broadcast_ps((const __m128*)x);
#endif
  return Vec<V>{};
}

// Sums over each D lanes, in the first of them.
template <int V, int D, int S = 1> INLINE Vec<V> folded(Vec<V> a) {
  if constexpr (S < D) return folded<V, D, S * 2>(a + swapped<V, S, true>(a, a));
  return a;
}

// Q vectors of values of row b of blocks, from the q-th on, for T tokens. A vector holds V / D rows, or V of a row.
template <int V, int D, int Q, int T>
INLINE void block_lanes(const BlockProduct& p, const float* x, int64_t ldx, int64_t b, int64_t q, float* out) {
  constexpr int U = Q * T >= 4 ? 1 : 4 / (Q * T);  // chains for each sum: an FMA takes four cycles
  const Blocks& a = p.a;
  const int64_t size = a.height * a.width, stride = a.width > V ? a.width : V;
  Vec<V> acc[U][Q][T];
#pragma GCC unroll 4
  for (int u = 0; u < U; u++)
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) acc[u][i][t] = Vec<V>{};
  const auto step = [&](const float* v, const float* from, Vec<V>(&sum)[Q][T]) __attribute__((always_inline)) {
    Vec<V> line[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) line[t] = repeated<V, D>(from + t * ldx);
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++) {
      const Vec<V> w = load<V>(v + i * stride);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) sum[i][t] += w * line[t];
    }
  };
  int64_t k = a.pos[b];
  const int64_t end = a.pos[b + 1];
  const float* v = a.values + k * size + q * stride;
  if (a.width <= V)
    for (; k + U <= end; k += U, v += U * size)
#pragma GCC unroll 4
      for (int u = 0; u < U; u++) step(v + u * size, x + a.crd[k + u] * a.width, acc[u]);
  for (; k < end; k++, v += size)
    for (int64_t j = 0; j < a.width; j += V) step(v + j, x + a.crd[k] * a.width + j, acc[0]);
#pragma GCC unroll 4
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 4
      for (int u = 1; u < U; u++) acc[0][i][t] += acc[u][i][t];
      const Vec<V> sum = folded<V, D>(acc[0][i][t]);
      const int64_t row = b * a.height + (q + i) * (V / D);
      for (int r = 0; r < V / D && row + r < a.rows; r++)
        out[t * p.ldo + row + r] = activate_one(sum[r * D] + (p.bias ? p.bias[row + r] : 0.0f), p.activation);
    }
}

template <int V, int D, int T>
static void blocks_of_tokens(const BlockProduct& p, const float* x, int64_t ldx, int64_t b0, int64_t b1, float* out) {
  const int64_t vectors = p.a.height / (V / D);
  for (int64_t b = b0; b < b1; b++) {
    int64_t q = 0;
    for (; q + 4 <= vectors; q += 4) block_lanes<V, D, 4, T>(p, x, ldx, b, q, out);
    for (; q < vectors; q++) block_lanes<V, D, 1, T>(p, x, ldx, b, q, out);
  }
}

template <int V, int D>
static void blocks_by_lanes(const BlockProduct& p, int64_t first, int64_t last, int64_t b0, int64_t b1) {
  const int64_t padded = p.a.across() * p.a.width;
  const float* x = p.x + first * p.ldx;
  int64_t ldx = p.ldx;
  if (padded != p.a.cols) {  // zeros behind the last column, which a padded block reads
    float* own = scratch((last - first) * padded * sizeof(float));
    for (int64_t t = 0; t < last - first; t++) {
      memcpy(own + t * padded, x + t * p.ldx, p.a.cols * sizeof(float));
      memset(own + t * padded + p.a.cols, 0, (padded - p.a.cols) * sizeof(float));
    }
    x = own, ldx = padded;
  }
  float* out = p.out + first * p.ldo;
  int64_t left = last - first;
  for (; left >= 4; left -= 4, x += 4 * ldx, out += 4 * p.ldo) blocks_of_tokens<V, D, 4>(p, x, ldx, b0, b1, out);
  if (left >= 2) blocks_of_tokens<V, D, 2>(p, x, ldx, b0, b1, out), left -= 2, x += 2 * ldx, out += 2 * p.ldo;
  if (left) blocks_of_tokens<V, D, 1>(p, x, ldx, b0, b1, out);
}

// The widest vectors that whole rows of a block fill, or that fill a row.
static void blocks_lanes(const BlockProduct& p, int64_t first, int64_t last, int64_t b0, int64_t b1) {
  const int64_t h = p.a.height, w = p.a.width;
  if constexpr (WIDTH >= 16) {
    if (w % 16 == 0) return blocks_by_lanes<16, 16>(p, first, last, b0, b1);
    if (w == 8 && h % 2 == 0) return blocks_by_lanes<16, 8>(p, first, last, b0, b1);
    if (w == 4 && h % 4 == 0) return blocks_by_lanes<16, 4>(p, first, last, b0, b1);
  }
  if constexpr (WIDTH >= 8) {
    if (w % 8 == 0) return blocks_by_lanes<8, 8>(p, first, last, b0, b1);
    if (w == 4 && h % 2 == 0) return blocks_by_lanes<8, 4>(p, first, last, b0, b1);
  }
  blocks_by_lanes<4, 4>(p, first, last, b0, b1);
}

// --- which, and what a thread does

static bool by_lanes(const BlockProduct& p) { return p.a.width % 4 == 0 && p.tokens <= 16; }

static int64_t block_panel_tokens(const BlockProduct& p) { return (p.a.height >= 4 ? 2 : 4) * WIDTH; }

static int64_t chunks(const Blocks& a) { return (a.down() + rows_of_blocks(a) - 1) / rows_of_blocks(a); }

static int64_t block_items(const BlockProduct& p) {
  const int64_t n = by_lanes(p) ? BLOCK_TOKENS : block_panel_tokens(p);
  return (p.tokens + n - 1) / n * chunks(p.a);
}

static void block_panels(const BlockProduct& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1) {
  if (tokens <= WIDTH) return blocks_by_panels<WIDTH, 1, 8>(p, first, tokens, b0, b1);
  if (p.a.height < 4) return blocks_by_panels<WIDTH, 4, 2>(p, first, tokens, b0, b1);
  if (p.a.height < 8 || WIDTH < 16) return blocks_by_panels<WIDTH, 2, 4>(p, first, tokens, b0, b1);
  return blocks_by_panels<WIDTH, 2, 8>(p, first, tokens, b0, b1);
}

// Item i: tokens i / chunks, rows i % chunks. Neighbours share a packed panel.
static void block_product(const BlockProduct& p, int64_t begin, int64_t end) {
  const bool lanes = by_lanes(p);
  const int64_t each = chunks(p.a), rows = rows_of_blocks(p.a), n = lanes ? BLOCK_TOKENS : block_panel_tokens(p);
  while (begin < end) {
    const int64_t t = begin / each, c0 = begin % each, c1 = smaller(end - t * each, each);
    const int64_t first = t * n, tokens = smaller(p.tokens - first, n);
    if (!lanes) block_panels(p, first, tokens, c0 * rows, smaller(c1 * rows, p.a.down()));
    else
      for (int64_t c = c0; c < c1; c++)
        blocks_lanes(p, first, first + tokens, c * rows, smaller((c + 1) * rows, p.a.down()));
    begin = t * each + c1;
  }
}
