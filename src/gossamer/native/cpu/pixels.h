// Between images and panels: line c of a panel is column c of the weight for N = T * W pixels of the result.
// Floor: a load and a store for W pixels, and one more of each where a row of pixels ends inside of a panel. The transposes
// of panel.h aren't needed: pixels are what is contiguous on both sides.

// Up to W pixels that are consecutive in memory.
struct Piece {
  int64_t at, memory, count;  // the first one in a line of the panel, and in memory
};

// N pixels from `first` on as pieces: row by row of `width` pixels, `line` floats apart, image by image.
template <int W>
static int pieces_of(int64_t first, int64_t tokens, int64_t height, int64_t width, int64_t image, int64_t line, Piece* piece) {
  int n = 0;
  for (int64_t at = 0; at < tokens;) {
    const int64_t pixel = (first + at) % (height * width), x = pixel % width;
    const int64_t row = width - x < tokens - at ? width - x : tokens - at, count = row < W ? row : W;
    piece[n++] = {at, (first + at) / (height * width) * image + pixel / width * line + x, count};
    at += count;
  }
  return n;
}

// `count` floats, with anything behind them.
template <int W> INLINE Vec<W> load_some(const float* p, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (W == 16) return (Vec<16>)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), p);
#endif
  if (count == W) return load<W>(p);
  float some[W] = {};
  for (int64_t i = 0; i < count; i++) some[i] = p[i];
  return load<W>(some);
}

template <int W> INLINE void store_some(float* p, Vec<W> v, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (W == 16) return _mm512_mask_storeu_ps(p, __mmask16((1u << count) - 1), (__m512)v);
#endif
  if (count == W) return store<W>(p, v);
  float some[W];
  store<W>(some, v);
  for (int64_t i = 0; i < count; i++) p[i] = some[i];
}

// Columns [first, first + count) for pixels from `token` on to lines [0, count) of a panel; what is written behind the last
// line is less than a line. Are all of them finite? Asked for if `check`.
template <int W, int T>
static bool pack_pixels(const Image& m, int64_t token, int64_t tokens, int64_t first, int64_t count, bool check, float* panel) {
  constexpr int N = T * W;
  Piece piece[N];
  const int pieces = pieces_of<W>(token, tokens, m.height, m.width, m.image, m.line, piece);
  if (tokens < N) memset(panel, 0, count * N * sizeof(float));
  const int64_t* column = m.column + first;
  if (pieces == T && tokens == N) {
    for (int64_t c = 0; c < count; c++)
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        store<W>(panel + c * N + t * W, load<W>(m.data + column[c] + piece[t].memory));
        __builtin_prefetch(m.data + column[c] + piece[t].memory + N);
      }
  } else {
    for (int64_t c = 0; c < count; c++) {
      const float* from = m.data + column[c];
      for (int i = 0; i < pieces; i++)  // the next piece overwrites what is behind this one
        store<W>(panel + c * N + piece[i].at, load_some<W>(from + piece[i].memory, piece[i].count));
    }
  }
  if (!check) return true;
  Vec<W> seen{};
  for (int64_t i = 0; i < count * N; i += W) seen += load<W>(panel + i) * 0.0f;
  float all = 0.0f;
  for (int l = 0; l < W; l++) all += seen[l];
  return all == 0.0f;
}

// Lines [0, count) of a panel to rows [row, ...) of the result; times scale, plus bias, through the activation.
template <int W, int T>
static void put_pixels(const Product& p, const float* panel, int64_t count, int64_t row, int64_t token, int64_t tokens) {
  constexpr int N = T * W;
  const int64_t plane = p.image->height * p.image->width;
  Piece piece[N];
  const int pieces = pieces_of<W>(token, tokens, 1, plane, p.a.rows * plane, 0, piece);
  for (int64_t r = 0; r < count; r++) {
    const float shift = p.bias ? p.bias[row + r] : 0.0f, factor = p.a.scale ? p.a.scale[row + r] : 1.0f;
    float* out = p.out + (row + r) * plane;
    for (int i = 0; i < pieces; i++) {
      const Vec<W> v = activate<W>(load<W>(panel + r * N + piece[i].at) * factor + shift, p.activation);
      store_some<W>(out + piece[i].memory, v, piece[i].count);
      __builtin_prefetch(out + piece[i].memory + N, 1, 2);
    }
  }
}

// Every other one of 2 W floats.
template <int W> INLINE Vec<W> evens(const float* p) {
#if defined(__AVX512F__)
  if constexpr (W == 16) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return (Vec<16>)_mm512_permutex2var_ps(_mm512_loadu_ps(p), even, _mm512_loadu_ps(p + 16));
  }
#endif
  Vec<W> v;
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) v[i] = p[2 * i];
  return v;
}

template <int W> INLINE void clear(float* to, int64_t count) {  // a few, mostly: memset takes longer
  for (int64_t i = 0; i < count; i += W) store_some<W>(to + i, Vec<W>{}, count - i < W ? count - i : W);
}

// One row of a plane: places [0, length) of a phase.
template <int W, int STRIDE> INLINE void spread(const float* from, float* to, const Axis& a, int64_t phase) {
  const int64_t stride = STRIDE ? STRIDE : a.stride, shift = a.before - phase;  // pixel i * stride - shift
  int64_t begin = shift > 0 ? (shift + stride - 1) / stride : 0, end = (a.size + shift + stride - 1) / stride;
  begin = begin < a.length ? begin : a.length, end = end < begin ? begin : end < a.length ? end : a.length;
  clear<W>(to, begin);
  int64_t i = begin;
  if (STRIDE == 1)
    for (; i < end; i += W) {
      const int64_t count = end - i < W ? end - i : W;
      store_some<W>(to + i, load_some<W>(from + i - shift, count), count);
    }
  if (STRIDE == 2)
    for (; i + W <= end && 2 * (i + W) - shift <= a.size; i += W) store<W>(to + i, evens<W>(from + 2 * i - shift));
  for (; i < end; i++) to[i] = from[i * stride - shift];
  clear<W>(to + end, a.length - end);
}

// Planes [begin, end).
template <int W> static void pad_planes(const Padding& p, int64_t begin, int64_t end) {
  const Axis &down = *p.down, &across = *p.across;
  float* to = p.to + begin * down.phases * down.length * across.phases * across.length;
  for (int64_t plane = begin; plane < end; plane++)
    for (int64_t d = 0; d < down.phases; d++)
      for (int64_t i = 0; i < down.length; i++) {
        const int64_t y = i * down.stride + down.phase[d] - down.before;
        for (int64_t q = 0; q < across.phases; q++) {
          const float* from = p.from + (plane * down.size + y) * across.size;
          if (y < 0 || y >= down.size) clear<W>(to, across.length);
          else if (across.stride == 1) spread<W, 1>(from, to, across, across.phase[q]);
          else if (across.stride == 2) spread<W, 2>(from, to, across, across.phase[q]);
          else spread<W, 0>(from, to, across, across.phase[q]);
          to += across.length;
        }
      }
}
