// Between token-major matrices and panels: line c of a panel is column c of N = T * W tokens, contiguous.
// Floor: W log2(W) shuffles for W x W values, one load and one store each: 4 cycles a vector of sixteen on Zen 4. Reached,
// in and out: 7 and 12 cycles a vector at 128 tokens, 9 to 20 and 12 to 25 at 2048, where they come from the third cache or
// from memory, which gives a line in 12.6 cycles on our machine. No processor follows 32 rows at once by itself, so what
// is AHEAD columns on in each row is asked for: without, 25 and 30 cycles at 2048 tokens, a third of the time at 95 %.
// Into the second cache: rows of 3072 bytes share four sets of the first one, and push each other out of it.
// Tried and no better: asking for the next tokens' lines during the product (the product is slowed by as much);
// stores that go round the cache; distances of 16, 32 and 128.
constexpr int64_t AHEAD = 64;

// W columns of `tokens` (<= N) rows of x to lines of a panel, one being left out after `edge` columns and each `window`
// more; lanes without a token hold 0.
template <int W, int T>
INLINE void pack_columns(const float* x, int64_t ldx, int64_t tokens, float* to, int64_t edge, int64_t window) {
  constexpr int N = T * W;
  for (int t = 0; t < T; t++) {
    Vec<W> a[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
      const int64_t token = t * W + i;
      a[i] = token < tokens ? load<W>(x + token * ldx) : Vec<W>{};
      __builtin_prefetch(x + token * ldx + AHEAD, 0, 2);
    }
    transpose<W>(a);
    if (edge >= W) {
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) store<W>(to + i * N + t * W, a[i]);
      continue;
    }
    for (int64_t i = 0, zeros = 0, next = edge; i < W; i++) {
      if (i == next) zeros++, next += window;
      store<W>(to + (i + zeros) * N + t * W, a[i]);
    }
  }
}

// Columns [first, first + count) into a panel; with a window, a line of zeros follows every `window` columns and the
// last one, else only the last one, at line `tile`.
template <int W, int T>
static void pack_panel(const float* x, int64_t ldx, int64_t tokens, int64_t first, int64_t count, int64_t window,
                       int64_t tile, float* panel) {
  constexpr int N = T * W;
  x += first;
  const auto line = [&](int64_t c) { return panel + (window ? c + c / window : c) * N; };
  for (int64_t c = 0; count >= W && c < count; c += W) {
    const int64_t from = c + W <= count ? c : count - W;  // the last ones again rather than one by one
    const int64_t edge = window ? (from / window + 1) * window - from : W;  // columns up to the next line of zeros
    pack_columns<W, T>(x + from, ldx, tokens, line(from), edge, window);
  }
  for (int64_t c = 0; count < W && c < count; c++)
    for (int64_t token = 0; token < N; token++) line(c)[token] = token < tokens ? x[token * ldx + c] : 0.0f;
  for (int64_t c = window ? window : tile; c <= (window ? count + window - 1 : tile); c += window ? window : tile)
    memset(panel + (window ? c + c / window - 1 : c) * N, 0, N * sizeof(float));
}

// Lines [0, count) of a panel to columns [first, ...) of `tokens` rows of out; times scale, plus bias, through the
// activation.
template <int W, int T>
static void unpack_panel(const float* panel, int64_t count, int64_t first, const float* scale, const float* bias,
                         int64_t activation, float* out, int64_t ldo, int64_t tokens) {
  constexpr int N = T * W;
  for (int64_t c = 0; count >= W && c < count; c += W) {
    const int64_t from = c + W <= count ? c : count - W;  // the last ones again rather than one by one
    const Vec<W> shift = bias ? load<W>(bias + first + from) : Vec<W>{};
    const Vec<W> factor = scale ? load<W>(scale + first + from) : Vec<W>{};
    for (int t = 0; t < T; t++) {
      Vec<W> a[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) a[i] = load<W>(panel + (from + i) * N + t * W);
      transpose<W>(a);
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) a[i] = scale ? a[i] * factor + shift : a[i] + shift;
      if (activation)
        for (int i = 0; i < W; i++) a[i] = activate<W>(a[i], activation);
      const int64_t left = tokens - t * W < W ? tokens - t * W : W;
      float* o = out + t * W * ldo + first + from;
      if (left == W)
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) {
          store<W>(o + i * ldo, a[i]);
          __builtin_prefetch(o + i * ldo + AHEAD, 0, 2);
        }
      else
        for (int i = 0; i < left; i++) store<W>(o + i * ldo, a[i]);
    }
  }
  for (int64_t c = 0; count < W && c < count; c++)
    for (int64_t token = 0; token < tokens; token++)
      out[token * ldo + first + c] = activate_one(
          panel[c * N + token] * (scale ? scale[first + c] : 1.0f) + (bias ? bias[first + c] : 0.0f), activation);
}
