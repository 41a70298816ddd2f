// Vectors of W floats by gcc's vector extensions, and the W x W transpose. Included by each instruction set's own file,
// inside its own namespace, so that no two sets share a symbol.
#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))

// In memory a vector may lie anywhere, which only load and store know; a variable is aligned as the processor wants it:
// gcc 13 took a local array of the former for one of the latter.
template <int W> struct Types {
  typedef float vec __attribute__((vector_size(W * 4)));
  typedef int32_t ints __attribute__((vector_size(W * 4)));
  typedef uint32_t words __attribute__((vector_size(W * 4)));
  typedef uint16_t halves __attribute__((vector_size(W * 2)));
  typedef float vec_anywhere __attribute__((vector_size(W * 4), aligned(4), may_alias));
  typedef uint16_t halves_anywhere __attribute__((vector_size(W * 2), aligned(2), may_alias));
};
template <int W> using Vec = typename Types<W>::vec;
template <int W> using Ints = typename Types<W>::ints;

template <int W> INLINE Vec<W> load(const float* p) {
  return *reinterpret_cast<const typename Types<W>::vec_anywhere*>(p);
}
template <int W> INLINE Vec<W> load(const Bf16* p) {
  const typename Types<W>::halves bits = *reinterpret_cast<const typename Types<W>::halves_anywhere*>(p);
  return (Vec<W>)(__builtin_convertvector(bits, typename Types<W>::words) << 16);
}
template <int W> INLINE void store(float* p, Vec<W> v) {
  *reinterpret_cast<typename Types<W>::vec_anywhere*>(p) = v;
}

#if defined(__AVX512F__)
INLINE __m512 load16(const float* v) { return _mm512_loadu_ps(v); }
INLINE __m512 load16(const int8_t* v) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)v)));
}
INLINE __m512 load16(const Bf16* v) { return (__m512)load<16>(v); }
INLINE __m128 load4(const Bf16* v) { return (__m128)load<4>(v); }
INLINE __m128 load4(const float* v) { return _mm_loadu_ps(v); }
INLINE __m128 load4(const int8_t* v) {
  int32_t four;
  memcpy(&four, v, 4);
  return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
}
#endif

// One load to all lanes, kept in a register: left alone, gcc loads it again for each use.
template <int W> INLINE Vec<W> broadcast(float s) {
  Vec<W> v = s - Vec<W>{};
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__AVX__)
  if constexpr (W <= 8) asm("" : "+x"(v));
#elif defined(__SSE2__)
  if constexpr (W <= 4) asm("" : "+x"(v));
#endif
  return v;
}

// At distance S, lane l of two vectors side by side: the own and the other's lower (or upper) S of each 2 S.
constexpr int swap_lane(int W, int S, int l, bool high) { return (l & S) ? (high ? W + l : W + l - S) : (high ? l + S : l); }

#if defined(__clang__)  // which has no __builtin_shuffle; gcc has the other one from 12 on only
template <int W, int S, bool HIGH, int... L> INLINE Vec<W> swap_lanes(Vec<W> p, Vec<W> q, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(p, q, swap_lane(W, S, L, HIGH)...);
}
template <int W, int S, bool HIGH> INLINE Vec<W> swapped(Vec<W> p, Vec<W> q) {
  return swap_lanes<W, S, HIGH>(p, q, std::make_integer_sequence<int, W>{});
}
#else
template <int W, int S, bool HIGH> INLINE Vec<W> swapped(Vec<W> p, Vec<W> q) {
  Ints<W> m;
  for (int l = 0; l < W; l++) m[l] = swap_lane(W, S, l, HIGH);
  return __builtin_shuffle(p, q, m);
}
#endif

// Butterflies: at distance S, exchange the off-diagonal S x S squares.
template <int W, int S> INLINE void transpose_step(Vec<W>* a) {
  if constexpr (S < W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      if (!(i & S)) {
        const Vec<W> p = a[i], q = a[i + S];
        a[i] = swapped<W, S, false>(p, q);
        a[i + S] = swapped<W, S, true>(p, q);
      }
    transpose_step<W, S * 2>(a);
  }
}
#if defined(__AVX512F__)
// The same for sixteen: shuffles inside of a quarter start on three ports of Zen 4, those across on two, so the
// butterflies take 4.6 cycles a vector and these 4.1. Quarters put together by loads, which saves half of the shuffles:
// 5.7.
INLINE void transpose16(Vec<16>* v) {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) a[i] = (__m512)v[i];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512 t0 = _mm512_unpacklo_ps(a[i], a[i + 1]), t1 = _mm512_unpackhi_ps(a[i], a[i + 1]);
    const __m512 t2 = _mm512_unpacklo_ps(a[i + 2], a[i + 3]), t3 = _mm512_unpackhi_ps(a[i + 2], a[i + 3]);
    b[i] = _mm512_shuffle_ps(t0, t2, 0x44), b[i + 1] = _mm512_shuffle_ps(t0, t2, 0xEE);
    b[i + 2] = _mm512_shuffle_ps(t1, t3, 0x44), b[i + 3] = _mm512_shuffle_ps(t1, t3, 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512 t0 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), t1 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xDD);
    const __m512 t2 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88), t3 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xDD);
    a[i] = _mm512_shuffle_f32x4(t0, t2, 0x88), a[i + 8] = _mm512_shuffle_f32x4(t0, t2, 0xDD);
    a[i + 4] = _mm512_shuffle_f32x4(t1, t3, 0x88), a[i + 12] = _mm512_shuffle_f32x4(t1, t3, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) v[i] = (Vec<16>)a[i];
}
#endif
template <int W> INLINE void transpose(Vec<W>* a) {
#if defined(__AVX512F__)
  if constexpr (W == 16) return transpose16(a);
#endif
  transpose_step<W, 1>(a);
}

// Sums over the lanes of W vectors, as one vector: a transpose that adds as it goes.
template <int W, int S> INLINE void sums_step(Vec<W>* a) {
  if constexpr (S < W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i += 2 * S) a[i] = swapped<W, S, false>(a[i], a[i + S]) + swapped<W, S, true>(a[i], a[i + S]);
    sums_step<W, S * 2>(a);
  }
}
template <int W> INLINE Vec<W> sums(Vec<W>* a) {
  sums_step<W, 1>(a);
  return a[0];
}
