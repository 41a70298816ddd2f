// grad[place] = sum over tokens of left[token, row] * right[token, col]: the gradient of the values; one thread's share.
//
// The same panels as the product's. Four rows at a time, whose lines of `left` stay in registers (AVX-512); for each step
// of theirs T multiply-adds a row, then the four vectors are summed over their lanes as they are transposed, and W / 4
// steps are written together.
// Floor for one value and N = T * W tokens: T FMAs, T loads, and 3 shuffles or adds, which start beside them: 1.0 cycle an
// FMA on Zen 4. Reached, 768x768, 90 %, 64 tokens, with the transposes of both operands: 1.94, of which these are 0.2, the
// columns 0.2 and the loads of four rows for a dozen steps 0.1; the kernel before, which loaded both operands, had 3.5.
// No better: quarters summed by shuffles of quarters instead of permutes (2.03); columns in a loop of its own for any
// pattern (2.05).

// Sums over each quarter of four vectors: lane 4 q + i is that of quarter q of a[i].
template <int W> INLINE Vec<W> quarter_sums(Vec<W>* a) {
#if defined(__AVX512F__)
  if constexpr (W == 16) {  // shuffles inside of a quarter, which need no register that says what goes where
    const __m512 p = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a[0], (__m512)a[1]), _mm512_unpackhi_ps((__m512)a[0], (__m512)a[1]));
    const __m512 q = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a[2], (__m512)a[3]), _mm512_unpackhi_ps((__m512)a[2], (__m512)a[3]));
    return (Vec<W>)_mm512_add_ps(_mm512_shuffle_ps(p, q, 0x44), _mm512_shuffle_ps(p, q, 0xEE));
  }
#endif
  const Vec<W> p = swapped<W, 1, false>(a[0], a[1]) + swapped<W, 1, true>(a[0], a[1]);
  const Vec<W> q = swapped<W, 1, false>(a[2], a[3]) + swapped<W, 1, true>(a[2], a[3]);
  return swapped<W, 2, false>(p, q) + swapped<W, 2, true>(p, q);
}

// Sums over the quarters of W / 4 vectors: quarter q of the result is that of a[q].
template <int W> INLINE Vec<W> sum_of_quarters(Vec<W>* a) {
  if constexpr (W >= 8) {
#pragma GCC unroll 2
    for (int i = 0; i < W / 4; i += 2) a[i] = swapped<W, 4, false>(a[i], a[i + 1]) + swapped<W, 4, true>(a[i], a[i + 1]);
  }
  if constexpr (W >= 16) a[0] = swapped<W, 8, false>(a[0], a[2]) + swapped<W, 8, true>(a[0], a[2]);
  return a[0];
}

// `steps` of four rows, of which y are the lines of `left`; those of `right` begin at `line`.
template <int W, int T>
INLINE void sample_rows(const Vec<W> (&y)[4][T], const float* right, const int32_t* line, int64_t steps, bool add, float* to) {
  constexpr int FEW = W / 4;
  for (int64_t j = 0; j < steps; j += FEW) {
    Vec<W> sum[FEW];
#pragma GCC unroll 4
    for (int i = 0; i < FEW; i++, line += LANES) {
      sum[i] = Vec<W>{};
      if (j + i >= steps) continue;
      Vec<W> acc[4];
#pragma GCC unroll 4
      for (int l = 0; l < 4; l++) {
        const float* x = right + line[l];
        acc[l] = load<W>(x) * y[l][0];
#pragma GCC unroll 4
        for (int t = 1; t < T; t++) acc[l] += load<W>(x + t * W) * y[l][t];
      }
      sum[i] = quarter_sums<W>(acc);
    }
    const Vec<W> all = sum_of_quarters<W>(sum);
#pragma GCC unroll 4
    for (int i = 0; i < FEW; i++, to += LANES) {
      if (j + i >= steps) continue;
      const Vec<4> four = {all[4 * i], all[4 * i + 1], all[4 * i + 2], all[4 * i + 3]};
      store<4>(to, add ? load<4>(to) + four : four);
    }
  }
}

// Where the lines of `right` begin that some steps of sixteen rows name, in floats; without an entry it is that of zeros.
template <int N> struct Lines {
  typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
  const Rows& a;
  Columns at;
  int64_t rest;    // regular: steps in this window
  int32_t window;  // where it begins
  explicit Lines(const Rows& rows) : a(rows), at(rows), rest(rows.per), window(0) {}

  void of(int64_t step, int64_t count, int32_t* line) {
    const int32_t zeros = int32_t(a.tile * N);
    if (a.near()) {
      for (int64_t j = 0; j < count; j++, line += LANES) {
        at.go_to(step + j);
        for (int l = 0; l < LANES; l++) line[l] = at.entry[l] ? at.column[l] * N : zeros;
      }
      return;
    }
    const bool half = a.nibbles();
    const int32_t unused = int32_t(a.per ? a.window : a.tile), mask = half ? 15 : 255;
    for (int64_t j = step; j < step + count; j++, line += LANES, rest--) {
      if (a.per && rest == 0) rest = a.per, window += int32_t(a.window * N);
      const bytes c = *reinterpret_cast<const bytes*>(a.crd + (half ? j / 2 : j) * LANES);
      const Ints<16> code = __builtin_convertvector(c, Ints<16>) >> (half ? j % 2 * 4 : 0) & mask;
      const Ints<16> found = code == unused ? zeros - Ints<16>{} : window + code * N;
      memcpy(line, &found, sizeof found);
    }
  }
};

// Tile k of block b: all of its lines of `left`, and those of the tile's columns.
template <int W, int T>
static void sample_tile(const Rows& a, int64_t b, int64_t k, const float* left, const float* right, bool add, float* grad) {
  constexpr int N = T * W;
  constexpr int64_t MOST = 64;  // steps at once
  int32_t line[MOST * LANES];
  for (int64_t g = 0; g < a.groups(); g++) {
    const int32_t* row = a.row_of(b, k, g);
    const int64_t first = a.first(b, k, g), end = first + a.steps(b, k, g);
    Lines<N> lines(a);
    for (int64_t step = first; step < end; step += MOST) {
      const int64_t count = end - step < MOST ? end - step : MOST;
      lines.of(step, count, line);
      for (int s = 0; s < LANES; s += 4) {
        Vec<W> y[4][T];
#pragma GCC unroll 4
        for (int l = 0; l < 4; l++)
#pragma GCC unroll 4
          for (int t = 0; t < T; t++) y[l][t] = load<W>(left + int64_t(row[s + l]) * N + t * W);
        sample_rows<W, T>(y, right, line + s, count, add, grad + step * LANES + s);
      }
    }
  }
}

// Blocks [b0, b1) of rows, tokens [first, first + tokens). Are all of left finite?
template <int W, int T>
static bool sample_tokens(const Sample& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t tiles = a.tiles(), panel = a.lines() * N;
  float* right = scratch((tiles * panel + a.block * N) * sizeof(float));
  float* left = right + tiles * panel;
  for (int64_t k = 0; k < tiles; k++) {
    pack_panel<W, T>(p.right + first * p.ldr, p.ldr, tokens, k * a.tile, a.width(k), right + k * panel);
    memset(right + k * panel + a.tile * N, 0, N * sizeof(float));
  }
  bool finite = true;
  for (int64_t b = b0; b < b1; b++) {
    const int64_t rows = a.height(b);
    finite &= pack_panel<W, T>(p.left + first * p.ldl, p.ldl, tokens, b * a.block, rows, left);
    memset(left + rows * N, 0, (a.block - rows) * N * sizeof(float));
    for (int64_t k = 0; k < tiles; k++) sample_tile<W, T>(a, b, k, left, right + k * panel, first > 0, p.grad);
  }
  return finite;
}

// Places without an entry get a zero, whatever the operands hold: where these are finite they have one.
static void clear_unused(const Sample& p, int64_t b) {
  const Rows& a = p.a;
  for (int64_t k = 0; k < a.tiles(); k++)
    for (int64_t g = 0; g < a.groups(); g++) {
      const int64_t first = a.first(b, k, g), steps = a.steps(b, k, g);
      Columns at(a);
      for (int64_t j = first; j < first + steps; j++) {
        at.go_to(j);
        for (int l = 0; l < LANES; l++)
          if (!at.entry[l]) p.grad[j * LANES + l] = 0.0f;
      }
    }
}
