// Between token-major matrices and panels: line c of a panel is column c of N = T * W tokens, contiguous.
// Floor: W log2(W) shuffles for W x W values, one load and one store each: 4 cycles a vector of sixteen on Zen 4. Reached,
// in and out: 6 and 12 cycles a vector at 128 tokens, 15 and 20 at 2048, where they come from the third cache or from
// memory, which gives a line in 12.6 cycles on our machine. No processor follows 32 rows at once by itself: W of them are
// read from their beginning to their end, and what is AHEAD columns on in each is asked for (with 32 rows and nothing asked
// for: 25 and 30 cycles at 2048 tokens).
// Tried and no better: asking for the next tokens' lines during the product (the product is slowed by as much);
// stores that go round the cache; distances of 16, 64, 128 and 256; into the second cache only.
constexpr int64_t AHEAD = 32;

// W columns of tokens [t * W, (t + 1) * W), of which there are `tokens`, to lines of a panel; lanes without a token hold 0.
// `seen` becomes NaN where one of them is not finite.
template <int W, int T>
INLINE void pack_columns(const float* x, int64_t ldx, int64_t tokens, int t, float* to, Vec<W>& seen) {
  constexpr int N = T * W;
  Vec<W> a[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) {
    const int64_t token = t * W + i;
    a[i] = token < tokens ? load<W>(x + token * ldx) : Vec<W>{};
    __builtin_prefetch(x + token * ldx + AHEAD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) seen += a[i] * 0.0f;
  transpose<W>(a);
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store<W>(to + i * N + t * W, a[i]);
}

// Columns [first, first + count) to lines [0, count) of a panel. Are all of them finite?
template <int W, int T>
static bool pack_panel(const float* x, int64_t ldx, int64_t tokens, int64_t first, int64_t count, float* panel) {
  constexpr int N = T * W;
  x += first;
  Vec<W> seen{};
  for (int t = 0; t < T; t++)  // W rows of x from their beginning to their end: that many streams a processor can follow
    for (int64_t c = 0; count >= W && c < count; c += W) {
      const int64_t from = c + W <= count ? c : count - W;  // the last ones again rather than one by one
      pack_columns<W, T>(x + from, ldx, tokens, t, panel + from * N, seen);
    }
  for (int64_t c = 0; count < W && c < count; c++)
    for (int64_t token = 0; token < N; token++) {
      panel[c * N + token] = token < tokens ? x[token * ldx + c] : 0.0f;
      seen[token % W] += panel[c * N + token] * 0.0f;
    }
  float all = 0.0f;
  for (int l = 0; l < W; l++) all += seen[l];
  return all == 0.0f;
}

// W rows of W tokens, of which there are `tokens`, to W columns of out; times scale, plus bias, through the activation.
// The lines of the next columns are asked for: until they are written, a product is computed.
template <int W>
INLINE void put_columns(Vec<W>* a, const float* scale, const float* bias, int64_t activation, float* out, int64_t ldo,
                        int64_t tokens) {
  const Vec<W> shift = bias ? load<W>(bias) : Vec<W>{};
  transpose<W>(a);
  if (!scale && !activation && tokens >= W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
      store<W>(out + i * ldo, a[i] + shift);
      __builtin_prefetch(out + i * ldo + W, 1, 2);
    }
    return;
  }
  const Vec<W> factor = scale ? load<W>(scale) : 1.0f - Vec<W>{};
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) a[i] = scale ? a[i] * factor + shift : a[i] + shift;
  if (activation)
    for (int i = 0; i < W; i++) a[i] = activate<W>(a[i], activation);
  for (int i = 0; i < W && i < tokens; i++) store<W>(out + i * ldo, a[i]);
}

// Lines [0, count) of a panel to columns [first, ...) of `tokens` rows of out; times scale, plus bias, through the
// activation.
template <int W, int T>
static void unpack_panel(const float* panel, int64_t count, int64_t first, const float* scale, const float* bias,
                         int64_t activation, float* out, int64_t ldo, int64_t tokens) {
  constexpr int N = T * W;
  if (bias) bias += first;
  if (scale) scale += first;
  out += first;
  for (int64_t c = 0; count >= W && c < count; c += W) {
    const int64_t from = c + W <= count ? c : count - W;  // the last ones again rather than one by one
    const float *times = scale ? scale + from : nullptr, *plus = bias ? bias + from : nullptr;
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      Vec<W> a[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) a[i] = load<W>(panel + (from + i) * N + t * W);
      put_columns<W>(a, times, plus, activation, out + t * W * ldo + from, ldo, tokens - t * W);
    }
  }
  for (int64_t c = 0; count < W && c < count; c++)
    for (int64_t token = 0; token < tokens; token++)
      out[token * ldo + c] =
          activate_one(panel[c * N + token] * (scale ? scale[c] : 1.0f) + (bias ? bias[c] : 0.0f), activation);
}
