// Activations in eight bits: a token's smallest and largest value, then  q = round(x / scale) + zero,  in 0 .. 254.
//
//   lo = min(0, smallest), hi = max(0, largest); scale = hi / 254 - lo / 254, at least the smallest normal float;
//   zero = round(-lo / scale)
// so that 0 is exact, and a value moves by at most half a scale. With a scale that is given, values outside saturate.
// A value that is not finite makes the token's scale NaN. Every operation is rounded by itself: all processors agree.
//
// Floor, sixteen values: load and two integer maxima; load, multiply, convert, and a quarter of three packs, two adds, a
// permute and a min: 6 vector operations, two loads and a quarter of a store.

constexpr int LEVELS = 254;

INLINE int32_t nearest_one(float v) {
#if defined(__SSE2__)
  return _mm_cvtss_si32(_mm_set_ss(v));
#else
  return int32_t(__builtin_rintf(v));
#endif
}

// To the nearest, ties to even.
INLINE Ints<WIDTH> nearest(Vec<WIDTH> v) {
#if defined(__AVX512F__) && WIDTH == 16
  return (Ints<WIDTH>)_mm512_maskz_cvtps_epi32(0xFFFF, (__m512)v);
#elif defined(__AVX2__) && WIDTH == 8
  return (Ints<WIDTH>)_mm256_cvtps_epi32((__m256)v);
#elif defined(__SSE2__) && WIDTH == 4
  return (Ints<WIDTH>)_mm_cvtps_epi32((__m128)v);
#else
  Ints<WIDTH> to;
  for (int l = 0; l < WIDTH; l++) to[l] = int32_t(__builtin_rintf(v[l]));
  return to;
#endif
}

template <class V, int S = 1> INLINE V largest(V v) {  // of all lanes, in the first
  if constexpr (S == WIDTH) return v;
  else {
    const V other = (V)swapped<WIDTH, S, true>((Vec<WIDTH>)v, (Vec<WIDTH>)v);
    return largest<V, 2 * S>(v > other ? v : other);
  }
}

// The bits of the largest value and of the smallest, or of 0 and -0. As integers, positive floats are in their order; as
// unsigned ones, the negative floats are behind them, the smallest last. A NaN is behind the infinity of its sign.
template <class X> INLINE void extremes(const X* x, int64_t cols, int32_t& high, uint32_t& low) {
  using Bits = typename Types<WIDTH>::words;
  Ints<WIDTH> hi[2] = {};
  Bits lo[2] = {};
  const auto see = [&](Vec<WIDTH> v, int u) __attribute__((always_inline)) {
    Ints<WIDTH> a = (Ints<WIDTH>)v;
#if defined(__AVX512F__) && WIDTH == 16
    asm("" : "+v"(a));  // else it is loaded twice
#endif
    const Bits b = (Bits)a;
    hi[u] = a > hi[u] ? a : hi[u];
    lo[u] = b > lo[u] ? b : lo[u];
  };
  int64_t c = 0;
  for (; c + 2 * WIDTH <= cols; c += 2 * WIDTH) see(load<WIDTH>(x + c), 0), see(load<WIDTH>(x + c + WIDTH), 1);
  for (; c + WIDTH <= cols; c += WIDTH) see(load<WIDTH>(x + c), 0);
  for (; c < cols; c++) see(float(x[c]) - Vec<WIDTH>{}, 0);
  high = largest(hi[0] > hi[1] ? hi[0] : hi[1])[0];
  low = largest(lo[0] > lo[1] ? lo[0] : lo[1])[0];
  low = low > 0x80000000u ? low : 0x80000000u;
}

constexpr bool finite(int32_t high, uint32_t low) { return high < 0x7F800000 && low < 0xFF800000u; }

struct Ranges {  // of some tokens at once: divisions take long
  static constexpr int MOST = 8;
  int32_t high[MOST] = {};
  uint32_t low[MOST] = {};
  float scale[MOST];
  int32_t zero[MOST];

  INLINE_MEMBER void choose() {
    constexpr int N = WIDTH < MOST ? WIDTH : MOST;
    const float least = 1.17549435e-38f;  // of normal numbers
    for (int i = 0; i < MOST; i += N) {
      const Vec<N> most = load_bits<N>(high + i), lowest = load_bits<N>(low + i);
      const Vec<N> wide = most / float(LEVELS) - lowest / float(LEVELS);
      const Vec<N> chosen = wide > least ? wide : least - Vec<N>{}, inverse = 1.0f / chosen;
      const Vec<N> middle = -lowest * inverse;
      store<N>(scale + i, chosen);
      for (int l = 0; l < N; l++) zero[i + l] = finite(high[i + l], low[i + l]) ? nearest_one(middle[l]) : 0;
    }
  }
};

// WIDTH values to numbers in 0 .. LEVELS. Those that are not finite, and those that are out of range, saturate.
INLINE Ints<WIDTH> levels(Vec<WIDTH> v, float inverse, int32_t zero) {
  const Vec<WIDTH> most = 32767.0f - Vec<WIDTH>{}, least = -32767.0f - Vec<WIDTH>{};
  v = v * inverse;
  v = v < most ? v : most;
  v = v > least ? v : least;
  Ints<WIDTH> q = nearest(v) + zero;
  q = q < 0 ? Ints<WIDTH>{} : q;
  return q > LEVELS ? LEVELS - Ints<WIDTH>{} : q;
}

#if defined(__AVX512BW__) && WIDTH == 16
// 64 values at once: fewer instructions for each sixteen. GIVEN: some may be out of range.
template <bool GIVEN, class X> INLINE __m512i levels64(const X* x, __m512 inverse, __m512i zero) {
  __m512i q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    __m512 v = (__m512)((Vec<16>)load<16>(x + 16 * i) * (Vec<16>)inverse);
    if (GIVEN) v = _mm512_maskz_max_ps(0xFFFF, _mm512_maskz_min_ps(0xFFFF, v, _mm512_set1_ps(32767.0f)), _mm512_set1_ps(-32767.0f));
    q[i] = (__m512i)nearest((Vec<16>)v);
  }
  const __m512i a = _mm512_packs_epi32(q[0], q[1]), b = _mm512_packs_epi32(q[2], q[3]);
  const __m512i bytes = _mm512_packus_epi16(_mm512_adds_epi16(a, zero), _mm512_adds_epi16(b, zero));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_min_epu8(_mm512_maskz_permutexvar_epi32(0xFFFF, order, bytes), _mm512_set1_epi8(char(LEVELS)));
}
#endif

typedef uint8_t ByteVec __attribute__((vector_size(WIDTH)));

INLINE void store_byte_vec(uint8_t* to, ByteVec v) { memcpy(to, &v, sizeof v); }

INLINE void pad(uint8_t* to, int64_t cols, int64_t padded, uint8_t with) {
  int64_t c = cols;
  for (; c + WIDTH <= padded; c += WIDTH) store_byte_vec(to + c, with - ByteVec{});
  for (; c < padded; c++) to[c] = with;
}

// q - OFF of a token, and the same of the value 0 behind it up to `padded`.
template <bool GIVEN, int OFF, class X>
static void quantize_row(const X* x, int64_t cols, float scale, int32_t zero, uint8_t* to, int64_t padded) {
  const float inverse = 1.0f / scale;
  int64_t c = 0;
#if defined(__AVX512BW__) && WIDTH == 16
  const __m512 times = _mm512_set1_ps(inverse);
  const __m512i plus = _mm512_set1_epi16(int16_t(zero));
  static_assert(OFF == 0, "for signed bytes subtract it here");
  for (; c + 64 <= cols; c += 64) _mm512_storeu_si512(to + c, levels64<GIVEN>(x + c, times, plus));
#endif
  for (; c + WIDTH <= cols; c += WIDTH)
    store_byte_vec(to + c, __builtin_convertvector(levels(load<WIDTH>(x + c), inverse, zero) - OFF, ByteVec));
  if (c < cols) {
    Vec<WIDTH> rest = {};
    for (int64_t i = c; i < cols; i++) rest[i - c] = x[i];
    const Ints<WIDTH> q = levels(rest, inverse, zero) - OFF;
    for (int64_t i = c; i < cols; i++) to[i] = uint8_t(q[i - c]);
  }
  pad(to, cols, padded, uint8_t(zero - OFF));
}

template <int OFF> static void copy_row(const uint8_t* x, int64_t cols, uint8_t* to, int64_t padded) {
  for (int64_t c = 0; c < cols; c++) to[c] = uint8_t((x[c] > LEVELS ? LEVELS : x[c]) - OFF);
  pad(to, cols, padded, 0);
}

// Tokens [first, first + count): rows of bytes, scales and zeros, both less OFF.
template <int OFF, class P, class X>
static void quantize_as(const P& p, const X* x, int64_t cols, int64_t first, int64_t count, uint8_t* to, int64_t padded,
                        float* scale, int32_t* zero) {
  for (int64_t from = 0; from < count; from += Ranges::MOST) {
    const int64_t some = count - from < Ranges::MOST ? count - from : Ranges::MOST;
    const X* rows = x + (first + from) * p.ldx;
    Ranges r;
    for (int64_t t = 0; t < some; t++) extremes(rows + t * p.ldx, cols, r.high[t], r.low[t]);
    if (!p.x_scale) r.choose();
    for (int64_t t = 0; t < some; t++) {
      uint8_t* row = to + (from + t) * padded;
      if (p.x_scale) {
        const int64_t at = p.x_each * (first + from + t);
        r.scale[t] = p.x_scale[at], r.zero[t] = p.x_zero[at];
        quantize_row<true, OFF>(rows + t * p.ldx, cols, r.scale[t], r.zero[t], row, padded);
      } else {
        quantize_row<false, OFF>(rows + t * p.ldx, cols, r.scale[t], r.zero[t], row, padded);
      }
      scale[from + t] = finite(r.high[t], r.low[t]) ? r.scale[t] : __builtin_nanf(""), zero[from + t] = r.zero[t] - OFF;
    }
  }
}

template <int OFF, class P>
static void quantize_tokens(const P& p, int64_t cols, int64_t first, int64_t count, uint8_t* to, int64_t padded, float* scale,
                            int32_t* zero) {
  if (p.x_type == NUMBER_FLOAT) return quantize_as<OFF>(p, (const float*)p.x, cols, first, count, to, padded, scale, zero);
  if (p.x_type == NUMBER_BF16) return quantize_as<OFF>(p, (const Bf16*)p.x, cols, first, count, to, padded, scale, zero);
  for (int64_t t = 0; t < count; t++) {
    copy_row<OFF>((const uint8_t*)p.x + (first + t) * p.ldx, cols, to + t * padded, padded);
    scale[t] = p.x_scale[p.x_each * (first + t)], zero[t] = p.x_zero[p.x_each * (first + t)] - OFF;
  }
}

static void quantize(const Int8Tokens& p, int64_t begin, int64_t end) {
  quantize_tokens<0>(p, p.cols, begin, end - begin, p.q + begin * p.cols, p.cols, p.scale + begin, p.zero + begin);
}
