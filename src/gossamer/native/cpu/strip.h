// R rows of a tile for N = T * W tokens, the inner loop of all panels: sums of  value * line of the column.
//
// Floor, for one value and W tokens: one FMA and one load of the activations; for one value: its way to all lanes, and
// one byte of index or half of one. Counted on Zen 4 (cycles; a 512-bit FMA takes one, and so does a 512-bit load):
//   8 FMAs that load their activations                                    8.0
//   the same + 4 permutes (two FMAs a value)                              8.0
//   the same + 4 byte loads of columns                                    8.6      and with 8: 10.2
//   the same with the 4 columns in one load, taken apart by shifts        8.5
//   4 broadcasts from memory instead of the permutes                     10.4      (they take a permute's port as well)
//   a 512-bit store more                                                 +1.0
// So four values are brought to all quarters of a vector by one load and spread by shuffles inside of a quarter, which
// start on three ports, R columns come by one load, and T = 2 is enough.
// Reached with all in the first-level cache: 1.22. Of it 0.1 are lines that differ, and 0.12 the loads of values and
// columns: no load is free where each FMA has one.
//
// Every other strip goes BACK through the tile: what was read last is still in the cache, so that a tile may be larger
// than it. Sums start at 0, and what memory has is added at the end: no FMA waits for the second-level cache.

constexpr int log_of(int n) { return n > 1 ? 1 + log_of(n / 2) : 0; }

// R values at once, and one of them to all lanes.
template <int W, int R> struct Several {
  template <class V> INLINE_MEMBER const V* load(const V* v) const { return v; }
  template <class V> INLINE_MEMBER Vec<W> to_all(const V* v, int r) const { return broadcast<W>(float(v[r])); }
};
#if defined(__AVX512F__)
template <int R> struct Several<16, R> {
  struct Held {
    __m512 fours[R / 4];
  };
  template <class V> INLINE_MEMBER Held load(const V* v) const {
    Held held;
    if constexpr (R == 16) {  // one load and four shuffles: where each value has one FMA, four loads are too many
      __m512 all = load16(v);
      asm("" : "+v"(all));
      held.fours[0] = _mm512_shuffle_f32x4(all, all, 0x00), held.fours[1] = _mm512_shuffle_f32x4(all, all, 0x55);
      held.fours[2] = _mm512_shuffle_f32x4(all, all, 0xAA), held.fours[3] = _mm512_shuffle_f32x4(all, all, 0xFF);
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < R / 4; i++) {
        held.fours[i] = _mm512_broadcast_f32x4(load4(v + 4 * i));
        asm("" : "+v"(held.fours[i]));
      }
    }
    return held;
  }
  INLINE_MEMBER Vec<16> to_all(const Held& held, int r) const {
    const __m512 v = held.fours[r / 4];
    __m512 w = r % 4 == 0   ? _mm512_permute_ps(v, 0x00)
               : r % 4 == 1 ? _mm512_permute_ps(v, 0x55)
               : r % 4 == 2 ? _mm512_permute_ps(v, 0xAA)
                            : _mm512_permute_ps(v, 0xFF);
    asm("" : "+v"(w));
    return (Vec<16>)w;
  }
};
#endif

// R bytes of columns by one load, or two: the activations need the rest.
template <int R> struct Codes {
  uint64_t eight[(R + 7) / 8] = {};
  INLINE_MEMBER explicit Codes(const uint8_t* at) {
    memcpy(eight, at, R);
#pragma GCC unroll 2
    for (uint64_t& word : eight) asm("" : "+r"(word));
  }
  // The number in the byte of row r, or in its upper half, times 2^SHIFT.
  template <bool NIBBLE, int SHIFT> INLINE_MEMBER uint64_t place(int r, int half) const {
    const uint64_t word = eight[r / 8], mask = uint64_t(NIBBLE ? 15 : 255) << SHIFT;
    const int at = 8 * (r % 8) + 4 * half;
    return (at >= SHIFT ? word >> (at - SHIFT) : word << (SHIFT - at)) & mask;
  }
};

// The places at v and c, from the first step to the last or BACK; after each `per` steps the next `window` columns begin.
// Sixteen rows ask for a line of values with each step, so many places `ahead`, if that is not 0. For fewer rows even the
// question takes a tenth more time.
template <int W, int T, int R, bool NIBBLES, bool BACK, class V>
INLINE void strip(const V* v, const uint8_t* c, int64_t steps, const float* panel, int64_t window, int64_t per,
                  int64_t ahead, Vec<W> (&acc)[R][T]) {
  constexpr int N = T * W, SHIFT = log_of(N * 4);
  constexpr int64_t PAIR = NIBBLES ? LANES : 2 * LANES;  // bytes of two steps
  const Several<W, R> several;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[r][t] = Vec<W>{};
  const int64_t bytes = window * N * 4;
  const char* from = reinterpret_cast<const char*>(panel) + (BACK && window ? (steps / per - 1) * bytes : 0);
  int64_t left = per;
  const auto step = [&](const V* values, const Codes<R>& codes, int half) __attribute__((always_inline)) {
    const auto some = several.load(values);
    if (R == LANES && ahead) __builtin_prefetch(values + ahead);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Vec<W> w = several.to_all(some, r);
      const float* x = reinterpret_cast<const float*>(from + codes.template place<NIBBLES, SHIFT>(r, half));
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) acc[r][t] += w * load<W>(x + t * W);
    }
    if (window && --left == 0) left = per, from += BACK ? -bytes : bytes;
  };
  const V *begin = v, *end = v + steps / 2 * 2 * LANES;
  if (BACK) {
    v = end, c += steps / 2 * PAIR;
    if (steps % 2) step(v, Codes<R>(c), 0);
    while (v != begin) {
      v -= 2 * LANES, c -= PAIR;
      const Codes<R> codes(c);
      step(v + LANES, NIBBLES ? codes : Codes<R>(c + LANES), NIBBLES);
      step(v, codes, 0);
    }
  } else {
    for (; v != end; v += 2 * LANES, c += PAIR) {
      const Codes<R> codes(c);
      step(v, codes, 0);
      step(v + LANES, NIBBLES ? codes : Codes<R>(c + LANES), NIBBLES);
    }
    if (steps % 2) step(v, Codes<R>(c), 0);
  }
}

// The same for rows whose columns are told by steps (rows.h, near), and an even number of them. The panel has a line before
// its first, for rows that are empty so far. Two steps take one load and one addition more than with a byte each.
template <int W, int T, int R, class V>
INLINE void near_strip(const V* v, const uint8_t* c, int64_t steps, const float* panel, Vec<W> (&acc)[R][T]) {
  constexpr int N = T * W, SHIFT = log_of(N * 4);
  const Several<W, R> several;
  const char* from[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    from[r] = reinterpret_cast<const char*>(panel - N);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[r][t] = Vec<W>{};
  }
  for (const V* end = v + steps * LANES; v != end; v += 2 * LANES, c += LANES) {
    const Codes<R> codes(c);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const auto some = several.load(v + half * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        from[r] += codes.template place<true, SHIFT>(r, half);
        const Vec<W> w = several.to_all(some, r);
        const float* x = reinterpret_cast<const float*>(from[r]);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) acc[r][t] += w * load<W>(x + t * W);
      }
    }
  }
}
