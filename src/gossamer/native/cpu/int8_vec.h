// Sixteen sums of 32 bits, the 64 bytes that four products of each are made of, and what they are multiplied by.
// Each instruction set has its own; the kernels are written once.
//
// Activations are bytes q, or q - OFFSET where the product wants signed ones. AVX2 has vpmaddubsw, unsigned times signed
// with a sum of two that saturates at 16 bits: 255 * 127 * 2 does. |v| times (q - 127) with the sign of v is at most
// 127 * 127 * 2 = 32258, and never does.

// Any bits as floats and back; load and store of vec.h are for floats only.
template <int N> INLINE Vec<N> load_bits(const void* p) {
  Vec<N> v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <int N> INLINE void store_bits(void* p, Vec<N> v) { memcpy(p, &v, sizeof v); }
INLINE Ints<WIDTH> load_ints(const int32_t* p) { return (Ints<WIDTH>)load_bits<WIDTH>(p); }

#if defined(__AVX512VNNI__) && WIDTH == 16

constexpr int OFFSET = 0;
typedef __m512i Sums;
typedef __m512i Bytes;
typedef __m512i Weights;
INLINE Sums no_sums() { return _mm512_setzero_si512(); }
INLINE Sums load_sums(const int32_t* p) { return _mm512_loadu_si512(p); }
INLINE void store_sums(int32_t* p, Sums s) { _mm512_storeu_si512(p, s); }
INLINE Ints<WIDTH> part_of(Sums s, int) { return (Ints<WIDTH>)s; }  // WIDTH of them
INLINE Sums add_sums(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
INLINE Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE void store_bytes(uint8_t* p, Bytes b) { _mm512_storeu_si512(p, b); }
INLINE Bytes four_bytes(const uint8_t* p) {  // to all lanes
  int32_t four;
  memcpy(&four, p, 4);
  Bytes b = _mm512_set1_epi32(four);
  asm("" : "+v"(b));  // else it is loaded again for each use
  return b;
}
INLINE Weights load_weights(const int8_t* p) { return _mm512_loadu_si512(p); }
INLINE Sums dot(Sums s, Bytes x, Weights w) {  // by the intrinsic gcc 12 copies or spills sums in the loops
  asm("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(x), "v"(w));
  return s;
}

// Sixteen weights, and four of them to all lanes: one load for four, spread by shuffles inside of 128 bits.
typedef __m512i Sixteen;
INLINE Sixteen load_sixteen(const int8_t* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p)); }
template <int R> INLINE Weights to_all(Sixteen v) { return _mm512_shuffle_epi32(v, (_MM_PERM_ENUM)(R * 0x55)); }

struct Quads {  // where sixteen times four bytes come from
  __m512i at;
  INLINE_MEMBER explicit Quads(const uint8_t* p) : at(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))) {}
  INLINE_MEMBER Bytes look(const uint8_t* line) const { return _mm512_permutexvar_epi32(at, _mm512_loadu_si512(line)); }
};

#if defined(__AVX512VBMI__)
template <int K> struct Singles {  // where 64 bytes come from
  __m512i at;
  INLINE_MEMBER explicit Singles(const uint8_t* p) : at(_mm512_loadu_si512(p)) {}
  INLINE_MEMBER Bytes look(const uint8_t* line) const { return _mm512_permutexvar_epi8(at, _mm512_loadu_si512(line)); }
};
#else
template <int K> struct Singles {  // in K tables of 16 bytes
  __m512i at;
  __mmask64 odd, upper;
  INLINE_MEMBER explicit Singles(const uint8_t* p) : at(_mm512_loadu_si512(p)) {
    odd = _mm512_test_epi8_mask(at, _mm512_set1_epi8(16)), upper = _mm512_test_epi8_mask(at, _mm512_set1_epi8(32));
  }
  INLINE_MEMBER Bytes table(const uint8_t* line) const {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)line)), at);
  }
  INLINE_MEMBER Bytes two(const uint8_t* line) const { return _mm512_mask_blend_epi8(odd, table(line), table(line + 16)); }
  INLINE_MEMBER Bytes look(const uint8_t* line) const {
    if (K == 1) return table(line);
    if (K == 2) return two(line);
    return _mm512_mask_blend_epi8(upper, two(line), two(line + 32));
  }
};
#endif

// Four sums of sixteen units, unit 4 * (l % 4) + l / 4 in lane l, to the sums of 64 rows in order.
INLINE void interleave(Sums (&s)[4]) {
  const Sums a = _mm512_unpacklo_epi32(s[0], s[1]), b = _mm512_unpackhi_epi32(s[0], s[1]);
  const Sums c = _mm512_unpacklo_epi32(s[2], s[3]), d = _mm512_unpackhi_epi32(s[2], s[3]);
  s[0] = _mm512_unpacklo_epi64(a, c), s[1] = _mm512_unpackhi_epi64(a, c);
  s[2] = _mm512_unpacklo_epi64(b, d), s[3] = _mm512_unpackhi_epi64(b, d);
}

#elif defined(__AVX2__)

struct Sums {
  __m256i a, b;
};
struct Bytes {
  __m256i a, b;
};
INLINE __m256i load32(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE void store32(void* p, __m256i v) { _mm256_storeu_si256((__m256i*)p, v); }
INLINE Sums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE Sums load_sums(const int32_t* p) { return {load32(p), load32(p + 8)}; }
INLINE void store_sums(int32_t* p, Sums s) { store32(p, s.a), store32(p + 8, s.b); }
INLINE Ints<WIDTH> part_of(Sums s, int i) { return (Ints<WIDTH>)(i ? s.b : s.a); }
INLINE Sums add_sums(Sums a, Sums b) { return {_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)}; }
INLINE Bytes load_bytes(const uint8_t* p) { return {load32(p), load32(p + 32)}; }
INLINE void store_bytes(uint8_t* p, Bytes b) { store32(p, b.a), store32(p + 32, b.b); }
INLINE Bytes four_bytes(const uint8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  const __m256i all = _mm256_set1_epi32(four);
  return {all, all};
}

#if defined(HAVE_AVXVNNI) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
constexpr int OFFSET = 0;
typedef Bytes Weights;
INLINE Weights weights_of(__m256i a, __m256i b) { return {a, b}; }
#if defined(HAVE_AVXVNNI)
INLINE __m256i dot8(__m256i s, __m256i x, __m256i w) { return _mm256_dpbusd_avx_epi32(s, x, w); }
#else  // the same by AVX-512, so that a machine without AVX-VNNI can test the rest
INLINE __m256i dot8(__m256i s, __m256i x, __m256i w) { return _mm256_dpbusd_epi32(s, x, w); }
#endif
INLINE Sums dot(Sums s, Bytes x, Weights w) { return {dot8(s.a, x.a, w.a), dot8(s.b, x.b, w.b)}; }
#else
constexpr int OFFSET = 127;
struct Weights {
  __m256i a, b, size_a, size_b;
};
INLINE Weights weights_of(__m256i a, __m256i b) { return {a, b, _mm256_abs_epi8(a), _mm256_abs_epi8(b)}; }
INLINE __m256i dot8(__m256i s, __m256i x, __m256i w, __m256i size) {
  const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INLINE Sums dot(Sums s, Bytes x, Weights w) { return {dot8(s.a, x.a, w.a, w.size_a), dot8(s.b, x.b, w.b, w.size_b)}; }
#endif
INLINE Weights load_weights(const int8_t* p) { return weights_of(load32(p), load32(p + 32)); }

typedef __m256i Sixteen;
INLINE Sixteen load_sixteen(const int8_t* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p)); }
template <int R> INLINE Weights to_all(Sixteen v) {
  const __m256i all = _mm256_shuffle_epi32(v, R * 0x55);
  return weights_of(all, all);
}

struct Quads {  // eight quads of a line in a table, the upper ones where bit 3 says so
  __m256i a, b;
  INLINE_MEMBER explicit Quads(const uint8_t* p)
      : a(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))), b(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))) {}
  INLINE_MEMBER __m256i half(__m256i low, __m256i high, __m256i at) const {
    return (__m256i)_mm256_blendv_ps((__m256)_mm256_permutevar8x32_epi32(low, at), (__m256)_mm256_permutevar8x32_epi32(high, at),
                                     (__m256)_mm256_slli_epi32(at, 28));
  }
  INLINE_MEMBER Bytes look(const uint8_t* line) const {
    const __m256i low = load32(line), high = load32(line + 32);
    return {half(low, high, a), half(low, high, b)};
  }
};

template <int K> struct Singles {  // in K tables of 16 bytes
  Bytes at;
  INLINE_MEMBER explicit Singles(const uint8_t* p) : at(load_bytes(p)) {}
  INLINE_MEMBER __m256i table(const uint8_t* line, __m256i from) const {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)line)), from);
  }
  INLINE_MEMBER __m256i two(const uint8_t* line, __m256i from) const {  // bit 4 says which: to the top, where blendv looks
    return _mm256_blendv_epi8(table(line, from), table(line + 16, from), _mm256_slli_epi16(from, 3));
  }
  INLINE_MEMBER __m256i half(const uint8_t* line, __m256i from) const {
    if (K == 1) return table(line, from);
    if (K == 2) return two(line, from);
    return _mm256_blendv_epi8(two(line, from), two(line + 32, from), _mm256_slli_epi16(from, 2));
  }
  INLINE_MEMBER Bytes look(const uint8_t* line) const { return {half(line, at.a), half(line, at.b)}; }
};

INLINE void interleave(Sums (&s)[4]) {
  int32_t from[4][16], to[64];
  for (int i = 0; i < 4; i++) store_sums(from[i], s[i]);
  for (int l = 0; l < 16; l++)
    for (int i = 0; i < 4; i++) to[(4 * (l % 4) + l / 4) * 4 + i] = from[i][l];
  for (int i = 0; i < 4; i++) s[i] = load_sums(to + 16 * i);
}

#else  // any processor: loops that a compiler may put into vectors

constexpr int OFFSET = 0;
struct Sums {
  int32_t of[16];
};
struct Bytes {
  uint8_t of[64];
};
struct Weights {
  int8_t of[64];
};
INLINE Sums no_sums() { return {}; }
INLINE Sums load_sums(const int32_t* p) {
  Sums s;
  memcpy(s.of, p, 64);
  return s;
}
INLINE void store_sums(int32_t* p, const Sums& s) { memcpy(p, s.of, 64); }
INLINE Ints<WIDTH> part_of(const Sums& s, int i) { return load_ints(s.of + i * WIDTH); }
INLINE Sums add_sums(Sums a, const Sums& b) {
  for (int l = 0; l < 16; l++) a.of[l] += b.of[l];
  return a;
}
INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes b;
  memcpy(b.of, p, 64);
  return b;
}
INLINE void store_bytes(uint8_t* p, const Bytes& b) { memcpy(p, b.of, 64); }
INLINE Bytes four_bytes(const uint8_t* p) {
  Bytes b;
  for (int l = 0; l < 16; l++) memcpy(b.of + 4 * l, p, 4);
  return b;
}
INLINE Weights load_weights(const int8_t* p) {
  Weights w;
  memcpy(w.of, p, 64);
  return w;
}
INLINE Sums dot(Sums s, const Bytes& x, const Weights& w) {
  for (int l = 0; l < 16; l++)
    for (int i = 0; i < 4; i++) s.of[l] += int32_t(x.of[4 * l + i]) * w.of[4 * l + i];
  return s;
}
struct Sixteen {
  int8_t of[16];
};
INLINE Sixteen load_sixteen(const int8_t* p) {
  Sixteen v;
  memcpy(v.of, p, 16);
  return v;
}
template <int R> INLINE Weights to_all(const Sixteen& v) {
  Weights w;
  for (int l = 0; l < 16; l++) memcpy(w.of + 4 * l, v.of + 4 * R, 4);
  return w;
}
struct Quads {
  uint8_t at[16];
  explicit Quads(const uint8_t* p) { memcpy(at, p, 16); }
  INLINE_MEMBER Bytes look(const uint8_t* line) const {
    Bytes b;
    for (int l = 0; l < 16; l++) memcpy(b.of + 4 * l, line + at[l] % 16 * 4, 4);
    return b;
  }
};
template <int K> struct Singles {
  uint8_t at[64];
  explicit Singles(const uint8_t* p) { memcpy(at, p, 64); }
  INLINE_MEMBER Bytes look(const uint8_t* line) const {
    Bytes b;
    for (int l = 0; l < 16; l++) {
      const uint8_t* a = at + 4 * l;
      const uint8_t four[4] = {line[a[0] % 64], line[a[1] % 64], line[a[2] % 64], line[a[3] % 64]};
      memcpy(b.of + 4 * l, four, 4);
    }
    return b;
  }
};
INLINE void interleave(Sums (&s)[4]) {
  Sums to[4];
  for (int l = 0; l < 16; l++)
    for (int i = 0; i < 4; i++) to[l % 4].of[l / 4 * 4 + i] = s[i].of[l];
  for (int i = 0; i < 4; i++) s[i] = to[i];
}

#endif
