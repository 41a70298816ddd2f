// out = act(x @ A.T + bias) for compressed rows of blocks and one to four tokens; one thread's share.
//
// The lanes run along the columns of a block: no transposes, and values are read in the order in which they lie. A block
// narrower than a vector fills it with several of its rows, against the activations of its columns repeated. One load of
// values and one of activations for each T multiply-adds. Floor: 4 bytes a value, read once, and 4 / (height * width) more
// of index. Widths that are multiples of four; others take panels (block_product.h).

constexpr int64_t BLOCK_ROWS = 64;  // rows of an item, about: their values stay in the second-level cache

INLINE int64_t rows_of_blocks(const Blocks& a) { return a.height >= BLOCK_ROWS ? 1 : BLOCK_ROWS / a.height; }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// bfloat16 values are widened some rows of blocks at a time, once for all tokens of a panel: room() floats for it, and the
// same rows with values that begin there.
static int64_t room(const Blocks& a, int64_t b0, int64_t b1) {
  int64_t most = 0;
  for (int64_t from = b0; a.halves && from < b1; from += rows_of_blocks(a)) {
    const int64_t count = a.pos[smaller(from + rows_of_blocks(a), b1)] - a.pos[from];
    most = count > most ? count : most;
  }
  return most * a.height * a.width;
}

static Blocks widened(const Blocks& a, int64_t from, int64_t to, float* wide) {
  if (!a.halves) return a;
  Blocks some = a;
  some.first = a.pos[from], some.values = wide;
  widen(a.halves + some.first * a.height * a.width, wide, (a.pos[to] - some.first) * a.height * a.width);
  return some;
}

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

// The sums of some rows, as far as there are rows; not inlined, as it stands in many places.
__attribute__((noinline)) static void block_out(const BlockProduct& p, const float* sum, int64_t row, int64_t count, float* out) {
  for (int64_t r = 0; r < count && row + r < p.a.rows; r++)
    out[row + r] = activate_one(sum[r] + (p.bias ? p.bias[row + r] : 0.0f), p.activation);
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
  const float* v = a.block(k) + q * stride;
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
      float each[V / D];
      for (int r = 0; r < V / D; r++) each[r] = sum[r * D];
      block_out(p, each, b * a.height + (q + i) * (V / D), V / D, out + t * p.ldo);
    }
}

template <int V, int D, int T>
static void blocks_of_tokens(const BlockProduct& p, const float* x, int64_t ldx, int64_t b0, int64_t b1,
                             float* out) {
  const int64_t vectors = p.a.height / (V / D);
  for (int64_t b = b0; b < b1; b++) {
    int64_t q = 0;
    for (; q + 4 <= vectors; q += 4) block_lanes<V, D, 4, T>(p, x, ldx, b, q, out);
    for (; q < vectors; q++) block_lanes<V, D, 1, T>(p, x, ldx, b, q, out);
  }
}

// All tokens, at most four, by two: the second time a few rows' values come from the second-level cache.
template <int V, int D> static void blocks_by_lanes(const BlockProduct& p, int64_t b0, int64_t b1) {
  const int64_t padded = p.a.across() * p.a.width, chunk = rows_of_blocks(p.a), pads = padded != p.a.cols;
  float *own = scratch((p.tokens * padded * pads + room(p.a, b0, b1)) * sizeof(float)), *wide = own + p.tokens * padded * pads;
  for (int64_t t = 0; pads && t < p.tokens; t++) {  // zeros behind the last column, which a padded block reads
    memcpy(own + t * padded, p.x + t * p.ldx, p.a.cols * sizeof(float));
    memset(own + t * padded + p.a.cols, 0, (padded - p.a.cols) * sizeof(float));
  }
  const float* x = pads ? own : p.x;
  const int64_t ldx = pads ? padded : p.ldx;
  BlockProduct q = p;
  for (int64_t from = b0; from < b1; from += chunk) {
    const int64_t to = smaller(from + chunk, b1);
    q.a = widened(p.a, from, to, wide);
    int64_t t = 0;
    for (; t + 2 <= p.tokens; t += 2) blocks_of_tokens<V, D, 2>(q, x + t * ldx, ldx, from, to, p.out + t * p.ldo);
    if (t < p.tokens) blocks_of_tokens<V, D, 1>(q, x + t * ldx, ldx, from, to, p.out + t * p.ldo);
  }
}

// The widest vectors that whole rows of a block fill, or that fill a row.
static void blocks_lanes(const BlockProduct& p, int64_t b0, int64_t b1) {
  const int64_t h = p.a.height, w = p.a.width;
  if constexpr (WIDTH == 16) {
    if (w % 16 == 0) return blocks_by_lanes<16, 16>(p, b0, b1);
    if (w == 8 && h % 2 == 0) return blocks_by_lanes<16, 8>(p, b0, b1);
    if (w == 4 && h % 4 == 0) return blocks_by_lanes<16, 4>(p, b0, b1);
  }
  if constexpr (WIDTH == 8) {
    if (w % 8 == 0) return blocks_by_lanes<8, 8>(p, b0, b1);
    if (w == 4 && h % 2 == 0) return blocks_by_lanes<8, 4>(p, b0, b1);
  }
  blocks_by_lanes<4, 4>(p, b0, b1);
}
