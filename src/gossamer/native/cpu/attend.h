// Attention: queries are the lanes, N = T * W of them at a time, so that maxima and sums of the softmax are sums of vectors.
//
// Floor, 2 W queries and one key of depth D: 4 D FMAs (scores, and the sum of values), 2 exponentials of 11 operations.
// Keys and values go to all lanes number by number, so they need no transpose. Queries are transposed once, results back.
// Scores of N queries and all keys stay in the first- or second-level cache (128 keys: 16 KB).
//
// Reached on Zen 4: see docs/explanation/int8.md. torch's attention makes products of matrices by MKL, which copies its
// operands first, and takes as long for the softmax of 32 columns as for a third of the products.

// 2^v for v <= 0; 0 below -126. A NaN stays one.
template <int W> INLINE Vec<W> two_to(Vec<W> v) {
  using U = typename Bits<W>::of;
  static constexpr float POWER[] = {1.0000000716546784f,  0.6931469670645354f,   0.2402211972386341f,
                                    0.05550713273863789f, 0.009675541333518611f, 0.0013276471874395545f};  // as gelu
#if defined(__AVX512F__)
  if constexpr (W == 16) {  // 2^k as an operation of its own, which is 0 far below
    const __m512 k = _mm512_roundscale_ps((__m512)v, 8);
    return (Vec<16>)_mm512_scalef_ps((__m512)polynomial<16>(v - (Vec<16>)k, POWER, 5), k);
  }
#endif
  constexpr float ROUND = 12582912.0f;
  const Vec<W> zero = {}, low = -126.0f - zero;
  const Vec<W> rounded = v + ROUND, f = v - (rounded - ROUND);
  const Vec<W> power = (Vec<W>)(((U)rounded << 23) + 0x3F800000u), out = polynomial<W>(f, POWER, 5) * power;
  return v < low ? zero : out;
}

// J keys from `k` on, `ld` floats apart: their scores to `s`, and the largest to `most`.
template <int W, int T, int J>
INLINE void attend_scores(const float* q, const float* k, int64_t ld, int64_t depth, const float* mask, float* s, Vec<W> (&most)[T]) {
  constexpr int N = T * W;
  Vec<W> acc[J][T];
  const float* key[(J + 2) / 3];
#pragma GCC unroll 8
  for (int j = 0; j < J; j++) {
    if (j % 3 == 0) key[j / 3] = k + j * ld;
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) acc[j][t] = Vec<W>{};
  }
  for (int64_t d = 0; d < depth; d++, q += N) {
    Vec<W> x[T];
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) x[t] = load<W>(q + t * W);
#pragma GCC unroll 8
    for (int j = 0; j < J; j++) {
      const Vec<W> one = broadcast<W>(key[j / 3][j % 3 * ld + d]);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) acc[j][t] += one * x[t];
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < J; j++)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      Vec<W> v = acc[j][t];
      if (mask) v += load<W>(mask + j * N + t * W);
      store<W>(s + j * N + t * W, v);
      most[t] = v > most[t] ? v : most[t];
    }
}

// DEPTH columns of the values, summed with the weights `s` of all keys, times `factor`: lines of N to `to`.
template <int W, int T, int DEPTH>
INLINE void attend_values(const float* s, const float* v, int64_t ld, int64_t keys, const Vec<W> (&factor)[T], float* to) {
  constexpr int N = T * W;
  Vec<W> acc[DEPTH][T];
#pragma GCC unroll 8
  for (int d = 0; d < DEPTH; d++)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) acc[d][t] = Vec<W>{};
  for (int64_t j = 0; j < keys; j++, s += N, v += ld) {
    Vec<W> x[T];
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) x[t] = load<W>(s + t * W);
#pragma GCC unroll 8
    for (int d = 0; d < DEPTH; d++) {
      const Vec<W> one = broadcast<W>(v[d]);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) acc[d][t] += one * x[t];
    }
  }
#pragma GCC unroll 8
  for (int d = 0; d < DEPTH; d++)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) store<W>(to + d * N + t * W, acc[d][t] * factor[t]);
}

// `count` rows of `depth` floats, `ld` apart, to `depth` lines of N, or back. Lines are filled up with zeros.
template <int W, int N> static void attend_in(const float* from, int64_t ld, int64_t count, int64_t depth, float factor, float* to) {
  if (count < N) memset(to, 0, depth * N * sizeof(float));
  int64_t i = 0;
  for (; i + W <= count && depth % W == 0; i += W)
    for (int64_t d = 0; d < depth; d += W) {
      Vec<W> v[W];
      for (int r = 0; r < W; r++) v[r] = load<W>(from + (i + r) * ld + d) * factor;
      transpose<W>(v);
      for (int r = 0; r < W; r++) store<W>(to + (d + r) * N + i, v[r]);
    }
  for (; i < count; i++)
    for (int64_t d = 0; d < depth; d++) to[d * N + i] = from[i * ld + d] * factor;
}

template <int W, int N> static void attend_out(const float* from, int64_t count, int64_t depth, float* to, int64_t ld) {
  int64_t i = 0;
  for (; i + W <= count && depth % W == 0; i += W)
    for (int64_t d = 0; d < depth; d += W) {
      Vec<W> v[W];
      for (int r = 0; r < W; r++) v[r] = load<W>(from + (d + r) * N + i);
      transpose<W>(v);
      for (int r = 0; r < W; r++) store<W>(to + (i + r) * ld + d, v[r]);
    }
  for (; i < count; i++)
    for (int64_t d = 0; d < depth; d++) to[i * ld + d] = from[d * N + i];
}

// 0 or -infinity for each key and query, as lines of N; false if all are 0.
template <int N> static bool attend_mask(const Attention& p, int64_t b, int64_t first, int64_t count, float* to) {
  const uint8_t* mask = p.mask + b * p.mask_batch + first * p.mask_query;
  const int64_t different = p.mask_query ? count : 1, ld = p.mask_query;
  bool all = true, same = true;  // same: all queries have the same keys
  if (p.mask_key == 1) {
    for (int64_t i = 0; i < different; i++) all &= !memchr(mask + i * ld, 0, p.keys), same &= !memcmp(mask, mask + i * ld, p.keys);
  } else {
    same = different == 1, all = false;
  }
  if (all) return false;
  for (int64_t j = 0; j < p.keys; j++)
    for (int64_t i = 0; i < N; i++) to[j * N + i] = same && !mask[j * p.mask_key] ? -__builtin_inff() : 0.0f;
  for (int64_t i = 0; i < count && !same; i++)
    for (int64_t j = 0; j < p.keys; j++)
      if (!mask[i * ld + j * p.mask_key]) to[j * N + i] = -__builtin_inff();
  return true;
}

// Keys and values of a head, row below row: as they come, rows are often a multiple of 512 bytes apart, and few of them fit in
// the first-level cache at once.
static void attend_copy(const Heads& x, int64_t b, int64_t h, int64_t keys, int64_t depth, float* to) {
  const float* from = x.data + b * x.batch + h * x.head;
  for (int64_t j = 0; j < keys; j++) memcpy(to + j * depth, from + j * x.token, depth * sizeof(float));
}

// `count` queries from `first` on, of one head.
template <int W, int T>
static void attend(const Attention& p, int64_t b, int64_t h, int64_t first, int64_t count, const float* k, const float* v,
                   const float* mask, float* room) {
  constexpr int N = T * W, J = W == 16 ? 8 : 4, DEPTH = J;
  float *q = room, *s = room + p.depth * N;
  attend_in<W, N>(p.q.data + b * p.q.batch + h * p.q.head + first * p.q.token, p.q.token, count, p.depth, p.scale * 1.44269504f, q);
  Vec<W> most[T], sum[T], factor[T];
  for (int t = 0; t < T; t++) most[t] = -__builtin_inff() - Vec<W>{}, sum[t] = Vec<W>{};
  int64_t j = 0;
  for (; j + J <= p.keys; j += J)
    attend_scores<W, T, J>(q, k + j * p.depth, p.depth, p.depth, mask ? mask + j * N : nullptr, s + j * N, most);
  for (; j < p.keys; j++)
    attend_scores<W, T, 1>(q, k + j * p.depth, p.depth, p.depth, mask ? mask + j * N : nullptr, s + j * N, most);
  const Vec<W> zero = {}, least = -__builtin_inff() - zero;
  for (int t = 0; t < T; t++) most[t] = most[t] == least ? zero : most[t];  // no key at all
  for (j = 0; j < p.keys; j++)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      const Vec<W> e = two_to<W>(load<W>(s + j * N + t * W) - most[t]);
      store<W>(s + j * N + t * W, e), sum[t] += e;
    }
  for (int t = 0; t < T; t++) factor[t] = sum[t] == zero ? zero : 1.0f / sum[t];
  int64_t d = 0;
  for (; d + DEPTH <= p.depth; d += DEPTH) attend_values<W, T, DEPTH>(s, v + d, p.depth, p.keys, factor, q + d * N);
  for (; d < p.depth; d++) attend_values<W, T, 1>(s, v + d, p.depth, p.keys, factor, q + d * N);
  attend_out<W, N>(q, count, p.depth, p.out + ((b * p.queries + first) * p.heads + h) * p.depth, p.heads * p.depth);
}

static int64_t attend_block(const Attention& p) { return p.queries > WIDTH ? 2 * WIDTH : WIDTH; }

static int64_t attend_items(const Attention& p) { return p.batch * ((p.queries + attend_block(p) - 1) / attend_block(p)) * p.heads; }

// Item i: head i / blocks, some of its queries. Neighbours share keys and values.
static void attend(const Attention& p, int64_t begin, int64_t end) {
  const int64_t n = attend_block(p), blocks = (p.queries + n - 1) / n, size = p.keys * p.depth;
  float *k = scratch((2 * size + (p.depth + 2 * p.keys) * n) * sizeof(float)), *v = k + size, *room = v + size;
  float* mask = room + (p.depth + p.keys) * n;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / blocks / p.heads, h = i / blocks % p.heads, first = i % blocks * n;
    const int64_t count = p.queries - first < n ? p.queries - first : n;
    if (i == begin || i % blocks == 0) attend_copy(p.k, b, h, p.keys, p.depth, k), attend_copy(p.v, b, h, p.keys, p.depth, v);
    if (n == WIDTH) {
      const bool masked = p.mask && attend_mask<WIDTH>(p, b, first, count, mask);
      attend<WIDTH, 1>(p, b, h, first, count, k, v, masked ? mask : nullptr, room);
    } else {
      const bool masked = p.mask && attend_mask<2 * WIDTH>(p, b, first, count, mask);
      attend<WIDTH, 2>(p, b, h, first, count, k, v, masked ? mask : nullptr, room);
    }
  }
}
