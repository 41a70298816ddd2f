// out = act(x @ A.T + bias) for compressed rows of blocks and one to four tokens; one thread's share.
//
// The lanes run along the columns of a block: no transposes, and values are read in the order in which they lie. A block
// narrower than a vector fills it with several of its rows, against the activations of its columns repeated. One load of
// values and one of activations for each T multiply-adds. Floor: 4 bytes a value, read once, and 4 / (height * width) more
// of index. Widths that are multiples of four; others take panels (block_product.h).

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
INLINE void block_lanes(const BlockProduct& p, const float* x, int64_t ldx, int64_t b, int64_t q) {
  constexpr int U = Q * T >= 3 ? 1 : 4 / (Q * T);  // chains for each sum: an FMA takes four cycles
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
        p.out[t * p.ldo + row + r] = activate_one(sum[r * D] + (p.bias ? p.bias[row + r] : 0.0f), p.activation);
    }
}

template <int V, int D, int T>
static void blocks_of_tokens(const BlockProduct& p, const float* x, int64_t ldx, int64_t b0, int64_t b1) {
  const int64_t vectors = p.a.height / (V / D);
  for (int64_t b = b0; b < b1; b++) {
    int64_t q = 0;
    for (; q + 4 <= vectors; q += 4) block_lanes<V, D, 4, T>(p, x, ldx, b, q);
    for (; q < vectors; q++) block_lanes<V, D, 1, T>(p, x, ldx, b, q);
  }
}

// All tokens, at most four.
template <int V, int D> static void blocks_by_lanes(const BlockProduct& p, int64_t b0, int64_t b1) {
  const int64_t padded = p.a.across() * p.a.width;
  const float* x = p.x;
  int64_t ldx = p.ldx;
  if (padded != p.a.cols) {  // zeros behind the last column, which a padded block reads
    float* own = scratch(p.tokens * padded * sizeof(float));
    for (int64_t t = 0; t < p.tokens; t++) {
      memcpy(own + t * padded, x + t * p.ldx, p.a.cols * sizeof(float));
      memset(own + t * padded + p.a.cols, 0, (padded - p.a.cols) * sizeof(float));
    }
    x = own, ldx = padded;
  }
  if (p.tokens == 4) return blocks_of_tokens<V, D, 4>(p, x, ldx, b0, b1);
  if (p.tokens == 3) return blocks_of_tokens<V, D, 3>(p, x, ldx, b0, b1);
  if (p.tokens == 2) return blocks_of_tokens<V, D, 2>(p, x, ldx, b0, b1);
  blocks_of_tokens<V, D, 1>(p, x, ldx, b0, b1);
}

// The widest vectors that whole rows of a block fill, or that fill a row.
static void blocks_lanes(const BlockProduct& p, int64_t b0, int64_t b1) {
  const int64_t h = p.a.height, w = p.a.width;
  if constexpr (WIDTH >= 16) {
    if (w % 16 == 0) return blocks_by_lanes<16, 16>(p, b0, b1);
    if (w == 8 && h % 2 == 0) return blocks_by_lanes<16, 8>(p, b0, b1);
    if (w == 4 && h % 4 == 0) return blocks_by_lanes<16, 4>(p, b0, b1);
  }
  if constexpr (WIDTH >= 8) {
    if (w % 8 == 0) return blocks_by_lanes<8, 8>(p, b0, b1);
    if (w == 4 && h % 2 == 0) return blocks_by_lanes<8, 4>(p, b0, b1);
  }
  blocks_by_lanes<4, 4>(p, b0, b1);
}
