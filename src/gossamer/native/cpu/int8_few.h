// DENSE and BITMAP with up to four tokens: one group of rows at a time, and nothing expanded into memory.
//
// Floor: the bytes of the weight, once. One core of Zen 5 reads 42 GB/s from memory. Measured there, 2048 x 2048, one token,
// microseconds with the weight in the L3 cache / from memory:
//   DENSE 34 / 100     BITMAP at 50 % 40 / 70     at 75 % 39 / 44     at 90 % 37 / 42      (LOOKUP 50 / 110, 29 / 60, 15 / 32)
// With 64 bytes of a weight in two cycles it is bound by expanding from 75 % on.
//
// Two sums of each token, so that a product needn't wait for the one before it (4 cycles on Zen 5). Tried: two groups at once
// instead of two sums (as fast from the cache; from memory 140 instead of 70: twice as many streams, each half as long);
// asking for values 512, 1024 and 2048 bytes ahead (93, 82 and 76 instead of 70), and not at all (75).

constexpr int64_t FEW = 4;
constexpr int64_t AHEAD = 4096;  // bytes of values

struct DenseQuads {  // the quads of a group, one after the other
  const int8_t* v;
  INLINE_MEMBER DenseQuads(const Int8Weight& a, int64_t group) : v(a.values + group * a.quads() * WINDOW) {}
  INLINE_MEMBER Weights next() {
    const Weights w = load_weights(v);
    v += WINDOW;
    return w;
  }
  INLINE_MEMBER void prefetch() const {}  // one stream, which the processor sees by itself
};

struct BitmapQuads {
  const int8_t* v;
  const uint8_t* bits;
  INLINE_MEMBER BitmapQuads(const Int8Weight& a, int64_t group) : v(a.values + a.pos[group]), bits(bits_of(a, group)) {}
  INLINE_MEMBER Weights next() {
#if defined(__AVX512VBMI2__) && WIDTH == 16
    uint64_t mask;
    memcpy(&mask, bits, 8);
    const Weights w = expanded(mask, v);
    v += __builtin_popcountll(mask), bits += 8;
    return w;
#else
    int8_t quad[WINDOW];
    v = expand_quad(bits, v, quad), bits += 8;
    return load_weights(quad);
#endif
  }
  INLINE_MEMBER void prefetch() const { __builtin_prefetch(v + AHEAD), __builtin_prefetch(bits + AHEAD / 4); }
};

template <class Quads, int T> INLINE void few_dots(Quads& quads, const uint8_t* q, int64_t pitch, Sums (&sums)[T]) {
  const Weights w = quads.next();
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) sums[t] = dot(sums[t], four_bytes(q + t * pitch), w);
}

// One group of rows, of T tokens, of which there are `tokens`.
template <class Quads, int T>
__attribute__((noinline)) static bool few_tokens(const Int8Product& p, int64_t group, int64_t token, int64_t tokens, const uint8_t* q,
                                                 int64_t pitch, const float* scale, const int32_t* zero) {
  const int64_t count = p.a.quads();
  Quads quads(p.a, group);
  Sums even[T], odd[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) even[t] = odd[t] = no_sums();
  for (int64_t k = 0; k + 2 <= count; k += 2, q += 8) {
    quads.prefetch();
    few_dots(quads, q, pitch, even), few_dots(quads, q + 4, pitch, odd);
  }
  if (count % 2) few_dots(quads, q, pitch, even);
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) even[t] = add_sums(even[t], odd[t]);
  return put<T>(p, group * GROUP, even, token, tokens, scale, zero);
}

// Groups [first, last).
template <class Quads>
static bool few_groups(const Int8Product& p, int64_t first, int64_t last, int64_t token, int64_t tokens, const uint8_t* q, int64_t pitch,
                       const float* scale, const int32_t* zero) {
  bool good = true;
  for (int64_t g = first; g < last; g++)
    good &= tokens == 1   ? few_tokens<Quads, 1>(p, g, token, tokens, q, pitch, scale, zero)
            : tokens == 2 ? few_tokens<Quads, 2>(p, g, token, tokens, q, pitch, scale, zero)
                          : few_tokens<Quads, 4>(p, g, token, tokens, q, pitch, scale, zero);
  return good;
}
