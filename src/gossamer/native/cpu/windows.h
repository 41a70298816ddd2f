// out = act(x @ A.T + bias) for regular patterns with windows of at most 32 columns, by AVX-512; one thread's share.
//
// The sixteen rows of a group are the lanes. A window of a token's activations is two registers, and one permute gives
// each lane the activation that its column names: no gather, no transpose of x or out, sums in registers from the first
// column to the last. G groups x T tokens share the loads of columns and values (T times) and of activations (G times).
// Floor for sixteen values and one token: one FMA and one permute: 1.33 cycles on Zen 4 (they share a port), 0.75 of the
// FMA ceiling; on Intel both take port 5: half of it. Reached on Zen 4, one thread: 0.56 of the ceiling of 118 GFLOP/s with
// windows of at most 15 columns, 0.47 with larger ones, at 16 tokens and more; at one token 33 GFLOP/s as long as the weight
// is in the second-level cache, 4.5 bytes a value. The panels of regular.h are faster for more
// tokens: by_windows says from where on.

#if defined(__AVX512F__)
constexpr int G = 4, QUAD = G * LANES;  // groups at a time, and their rows
// With one token all time goes into reading the weight. It is asked for so many steps before, and at the end of a group
// from the next G: a weight that comes from the third cache or memory is then read 1.2 times as fast at 90 % and 95 %.
constexpr int64_t SOON = 24;

// Windows [w0, w1) of GG groups and T tokens. LAST: some of their 32 activations lie behind the end of x. ZERO: windows of
// less than 32 columns have a zero behind them, which a place without an entry names; else such places are left out.
// One token, 1:20, in the second-level cache: asking for columns ahead costs a sixth of the time, for values a quarter; from
// memory the former saves a tenth and the latter a third. So only values are asked for.
template <int GG, int T, bool LAST, bool ZERO, class V>
INLINE void windows_part(const Rows& a, int64_t w0, int64_t w1, const float* x, int64_t ldx, const V* values,
                         const uint8_t* crd, __m512 (&acc)[GG][T]) {
  const int64_t each = a.windows() * a.per * LANES;  // places of a group
  const __m128i unused = _mm_set1_epi8(char(a.window));
  const uint32_t inside = ZERO ? (1u << a.window) - 1 : ~0u;
  const V* v = values + w0 * a.per * LANES;
  const uint8_t* c = crd + w0 * a.per * LANES;
  for (int64_t w = w0; w < w1; w++) {
    __m512 low[T], high[T];
    const int64_t left = a.cols - w * a.window;
    const __mmask32 some = (LAST && left < 32 ? (1u << left) - 1 : ~0u) & inside;
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const float* from = x + t * ldx + w * a.window;
      low[t] = LAST || ZERO ? _mm512_maskz_loadu_ps(__mmask16(some), from) : _mm512_loadu_ps(from);
      high[t] = LAST || ZERO ? _mm512_maskz_loadu_ps(__mmask16(some >> 16), from + 16) : _mm512_loadu_ps(from + 16);
    }
    const int64_t ahead = SOON * LANES + (w + SOON / a.per < a.windows() ? 0 : (GG - 1) * each);
    for (int64_t e = 0; e < a.per; e++, v += LANES, c += LANES)
#pragma GCC unroll 4
      for (int g = 0; g < GG; g++) {
        const __m128i bytes = _mm_loadu_si128((const __m128i*)(c + g * each));
        const __m512i named = _mm512_cvtepu8_epi32(bytes);
        __m512 value = load16(v + g * each);
        asm("" : "+v"(value));
        if (T == 1) _mm_prefetch((const char*)(v + g * each + ahead), _MM_HINT_T0);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
          const __m512 found = _mm512_permutex2var_ps(low[t], named, high[t]);
          acc[g][t] = ZERO ? _mm512_fmadd_ps(found, value, acc[g][t])
                           : _mm512_mask3_fmadd_ps(found, value, acc[g][t], _mm_cmpneq_epi8_mask(bytes, unused));
        }
      }
  }
}

// The same for windows of at most 15 columns, all of them: one register holds a window, and zeros behind it, one of which
// a place without an entry names; a permute reads the lower four bits of each lane, so a byte is two steps as it is.
template <int GG, int T, class V>
INLINE void nibbles_part(const Rows& a, const float* x, int64_t ldx, const V* v, const uint8_t* c, __m512 (&acc)[GG][T]) {
  const int64_t each = a.each() * LANES, windows = a.windows(), steps = windows * a.per;
  const __mmask16 whole = __mmask16((1u << a.window) - 1), some = __mmask16((1u << (a.cols - (windows - 1) * a.window)) - 1);
  __m512 seen[T];
  __m512i named[GG];
  int64_t w = 0, left = a.per;
  const auto look = [&]() __attribute__((always_inline)) {
    const __mmask16 mask = w + 1 < windows ? whole : some;
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) seen[t] = _mm512_maskz_loadu_ps(mask, x + t * ldx + w * a.window);
  };
  const auto step = [&](const V* values, int64_t ahead) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int g = 0; g < GG; g++) {
      __m512 value = load16(values + g * each);
      asm("" : "+v"(value));
      if (T == 1) _mm_prefetch((const char*)(values + g * each + ahead), _MM_HINT_T0);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) acc[g][t] = _mm512_fmadd_ps(_mm512_permutexvar_ps(named[g], seen[t]), value, acc[g][t]);
    }
    if (--left == 0) {
      left = a.per;
      if (++w < windows) look();
    }
  };
  look();
  for (int64_t q = 0; q < steps; q += 2, v += 2 * LANES, c += LANES) {
    const int64_t ahead = SOON * LANES + (q + SOON < steps ? 0 : (GG - 1) * each);
#pragma GCC unroll 4
    for (int g = 0; g < GG; g++) {
      named[g] = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(c + g * each / 2)));
      if (T == 1) _mm_prefetch((const char*)(c + g * each / 2 + ahead / 2), _MM_HINT_T0);
    }
    step(v, ahead);
    if (q + 1 == steps) break;
#pragma GCC unroll 4
    for (int g = 0; g < GG; g++) named[g] = _mm512_srli_epi32(named[g], 4);
    step(v + LANES, ahead);
  }
}

template <int GG, int T, class V>
static void windows_tokens(const Product& p, int64_t group, const float* x, float* out) {
  const Rows& a = p.a;
  const int64_t windows = a.windows(), start = group * a.each() * LANES;
  const int64_t whole = a.cols < 32 ? 0 : (a.cols - 32) / a.window + 1;
  __m512 acc[GG][T];
#pragma GCC unroll 4
  for (int g = 0; g < GG; g++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[g][t] = _mm512_setzero_ps();
  const V* values = a.first_value<V>() + start;
  const int64_t inside = whole < windows ? whole : windows;
  if (a.nibbles() && windows) {
    nibbles_part<GG, T>(a, x, p.ldx, values, a.crd + start / 2, acc);
  } else {
    const uint8_t* crd = a.crd + start;
    if (a.window < 32) {
      windows_part<GG, T, false, true>(a, 0, inside, x, p.ldx, values, crd, acc);
      windows_part<GG, T, true, true>(a, inside, windows, x, p.ldx, values, crd, acc);
    } else {
      windows_part<GG, T, false, false>(a, 0, inside, x, p.ldx, values, crd, acc);
      windows_part<GG, T, true, false>(a, inside, windows, x, p.ldx, values, crd, acc);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < GG; g++) {
    const int64_t row = (group + g) * LANES, left = a.rows - row;
    if (left <= 0) return;
    const __mmask16 mask = left >= LANES ? 0xFFFF : __mmask16((1u << left) - 1);
    const __m512 factor = a.scale ? _mm512_maskz_loadu_ps(mask, a.scale + row) : _mm512_set1_ps(1.0f);
    const __m512 shift = p.bias ? _mm512_maskz_loadu_ps(mask, p.bias + row) : _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      __m512 sum = _mm512_fmadd_ps(acc[g][t], factor, shift);
      if (p.activation) sum = (__m512)activate<16>((Vec<16>)sum, p.activation);
      _mm512_mask_storeu_ps(out + t * p.ldo + row, mask, sum);
    }
  }
}

template <int GG, class V>
static void windows_groups(const Product& p, int64_t group, int64_t first, int64_t end) {
  int64_t t = first;
  for (; t + 4 <= end; t += 4) windows_tokens<GG, 4, V>(p, group, p.x + t * p.ldx, p.out + t * p.ldo);
  const float* x = p.x + t * p.ldx;
  float* out = p.out + t * p.ldo;
  if (end - t == 3) windows_tokens<GG, 3, V>(p, group, x, out);
  if (end - t == 2) windows_tokens<GG, 2, V>(p, group, x, out);
  if (end - t == 1) windows_tokens<GG, 1, V>(p, group, x, out);
}

constexpr int64_t SHARE = 64;  // tokens of an item: their activations stay in the second-level cache

static int64_t quads(const Rows& a) { return (a.rows + QUAD - 1) / QUAD; }

// Item i: tokens i / quads, rows i % quads.
template <class V> static void multiply_windows(const Product& p, int64_t begin, int64_t end) {
  const int64_t each = quads(p.a), groups = (p.a.rows + LANES - 1) / LANES;
  for (int64_t i = begin; i < end; i++) {
    const int64_t first = i / each * SHARE, last = first + SHARE < p.tokens ? first + SHARE : p.tokens;
    int64_t group = i % each * G;
    if (group + G <= groups) windows_groups<G, V>(p, group, first, last);
    else
      for (; group < groups; group++) windows_groups<1, V>(p, group, first, last);
  }
}

// Measured on Zen 4 at 2:4, 1:4, 1:10 and 1:20, 768x768 and 768x3072: as fast as panels at 14 tokens and at 26, where those
// of 16 and of 32 are filled so far; 1.1 to 1.6 times as fast below, and as much slower above.
static bool by_windows(const Product& p) {
  return p.a.per && p.a.window <= 32 && !p.image && (p.tokens <= 14 || (p.tokens > 16 && p.tokens <= 24));
}
#endif
