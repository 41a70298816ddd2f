// As strip.h, for bfloat16 values and activations by vdpbf16ps: two columns of a row and 32 tokens at once.
//
// The instruction multiplies pairs: of a value and the next one of its row, and of a token's activations in their two columns.
// Lines of the panel are 32 tokens in bfloat16. Those of two columns are unpacked to pairs, tokens 0 .. 15 and 16 .. 31,
// because a line holds them in that order: tokens 4 l .. 4 l + 3 and 16 + 4 l .. in quarter l.
//
// Floor, two values and 32 tokens: two products, two loads, two unpacks and a shuffle, where float32 has four FMAs that load.
// Sums are float32; numbers below 2^-126 count as 0, as the instruction takes them.

#if defined(__AVX512BW__) && WIDTH == 16 && (defined(__clang__) ? __clang_major__ >= 11 : __GNUC__ >= 11)
#define HALF_DOTS

// Lines of 32 floats that are bfloat16 to the first halves of their places, one behind the other.
static void narrow_lines(float* panel, int64_t lines) {
  uint16_t* to = (uint16_t*)panel;
  for (int64_t i = 0; i < lines; i++, to += 32) {
    const float* from = panel + i * 32;
    const __m512i a = _mm512_srli_epi32(_mm512_loadu_si512(from), 16), b = _mm512_srli_epi32(_mm512_loadu_si512(from + 16), 16);
    _mm512_storeu_si512(to, _mm512_packus_epi32(a, b));
  }
}

INLINE Vec<16> half_dot(Vec<16> sum, __m512i pairs, __m512i values) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(pairs), "v"(values));
  return sum;
}

// Eight rows: the places at v and c as in strip(); a last step that is alone is paired with the line `zeros`.
template <int R, bool NIBBLES, bool BACK>
INLINE void half_strip(const uint16_t* v, const uint8_t* c, int64_t steps, const uint16_t* panel, const uint16_t* zeros, int64_t window,
                       int64_t per, Vec<16> (&acc)[R][2]) {
  static_assert(R == 8, "the values of eight rows are one load");
  constexpr int SHIFT = 6;
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = Vec<16>{};
  const int64_t bytes = window << SHIFT;
  const char* from = (const char*)panel + (BACK && window ? (steps / per - 1) * bytes : 0);
  int64_t left = per;
  const auto next = [&]() __attribute__((always_inline)) {  // where the lines of a step are
    const char* at = from;
    if (window && --left == 0) left = per, from += BACK ? -bytes : bytes;
    return at;
  };
  const auto multiply = [&](__m512i x, __m512i y, __m512i values, int r) __attribute__((always_inline)) {
    acc[r][0] = half_dot(acc[r][0], _mm512_unpacklo_epi16(x, y), values);
    acc[r][1] = half_dot(acc[r][1], _mm512_unpackhi_epi16(x, y), values);
  };
  const auto spread = [&](__m128i one, __m128i two, __m512i (&fours)[2]) __attribute__((always_inline)) {
    fours[0] = _mm512_broadcast_i32x4(_mm_unpacklo_epi16(one, two)), fours[1] = _mm512_broadcast_i32x4(_mm_unpackhi_epi16(one, two));
    asm("" : "+v"(fours[0]), "+v"(fours[1]));
  };
  const auto to_all = [&](const __m512i (&fours)[2], int r) __attribute__((always_inline)) {
    const __m512i four = fours[r / 4];
    return r % 4 == 0   ? _mm512_shuffle_epi32(four, (_MM_PERM_ENUM)0x00)
           : r % 4 == 1 ? _mm512_shuffle_epi32(four, (_MM_PERM_ENUM)0x55)
           : r % 4 == 2 ? _mm512_shuffle_epi32(four, (_MM_PERM_ENUM)0xAA)
                        : _mm512_shuffle_epi32(four, (_MM_PERM_ENUM)0xFF);
  };
  const auto values = [&](int64_t step) __attribute__((always_inline)) { return _mm_loadu_si128((const __m128i*)(v + step * LANES)); };
  const auto codes = [&](int64_t step) __attribute__((always_inline)) { return Codes<R>(c + (NIBBLES ? step / 2 : step) * LANES); };
  const auto pair = [&](int64_t j) __attribute__((always_inline)) {
    __m512i fours[2];
    spread(values(j), values(j + 1), fours);
    const Codes<R> first = codes(j), second = NIBBLES ? first : codes(j + 1);
    const char *a = next(), *b = next();
    const char *low = BACK ? b : a, *high = BACK ? a : b;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_loadu_si512(low + first.template place<NIBBLES, SHIFT>(r, 0));
      const __m512i y = _mm512_loadu_si512(high + second.template place<NIBBLES, SHIFT>(r, NIBBLES));
      multiply(x, y, to_all(fours, r), r);
    }
  };
  const auto single = [&]() __attribute__((always_inline)) {
    __m512i fours[2];
    spread(values(steps - 1), _mm_setzero_si128(), fours);
    const Codes<R> one = codes(steps - 1);
    const char* at = next();
    const __m512i none = _mm512_loadu_si512(zeros);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) multiply(_mm512_loadu_si512(at + one.template place<NIBBLES, SHIFT>(r, 0)), none, to_all(fours, r), r);
  };
  if (BACK && steps % 2) single();
  for (int64_t i = 0; i + 2 <= steps; i += 2) pair(BACK ? steps / 2 * 2 - 2 - i : i);
  if (!BACK && steps % 2) single();
}
#endif

// Are 32 tokens multiplied by it?
static bool by_half_dots(const Product& p) {
#if defined(HALF_DOTS)
  return p.x_halves && p.a.halves && !p.a.near() && has_half_dots();
#else
  return (void)p, false;
#endif
}
