// BITMAP: values without zeros and a bit for each position; a group is expanded to the order of DENSE before it is used.
//
// Floor, 64 values: load the bits and the values, expand (vpexpandb: two operations on one port of Intel), store, count the
// bits. That is 3 cycles for 64 bytes of the dense weight, once for all tokens of a set; at 50 % it reads 40 bytes for 64.

#if defined(__AVX512VBMI2__) && WIDTH == 16
// The next 64 values. In place: Zen 5 waits for the old value of the register that vpexpandb writes, zeroed or not, and a
// compiler may choose the one of the last step. That takes 6 cycles instead of 2.4.
INLINE __m512i expanded(uint64_t mask, const int8_t* from) {
  __m512i v = _mm512_loadu_si512(from);
  asm("vpexpandb %0, %0%{%1%}%{z%}" : "+v"(v) : "Yk"((__mmask64)mask));
  return v;
}
#endif

// The next 64 values at `to`; returns where those behind them are.
INLINE const int8_t* expand_quad(const uint8_t* bits, const int8_t* from, int8_t* to) {
  uint64_t mask;
  memcpy(&mask, bits, 8);
#if defined(__AVX512VBMI2__) && WIDTH == 16
  _mm512_storeu_si512(to, expanded(mask, from));
  return from + __builtin_popcountll(mask);
#else
  for (int i = 0; i < 64; i++) {
    const int kept = mask >> i & 1;
    to[i] = int8_t(*from & -kept), from += kept;
  }
  return from;
#endif
}

INLINE const uint8_t* bits_of(const Int8Weight& a, int64_t group) { return a.crd + group * a.quads() * 8; }

struct Panel {        // the values of some groups in the order of DENSE
  const int8_t* v;
  int64_t pitch;      // bytes from one group to the next
};

// Groups [first, first + count), each filled up with zeros to a multiple of EACH quads; in `room` unless they are there already.
template <int EACH> static Panel panel_of(const Int8Weight& a, int64_t first, int64_t count, int8_t* room) {
  const int64_t quads = a.quads(), padded = (quads + EACH - 1) / EACH * EACH, pitch = padded * WINDOW;
  if (a.kind == INT8_DENSE && quads == padded) return {a.values + first * pitch, pitch};
  for (int64_t g = 0; g < count; g++) {
    int8_t* to = room + g * pitch;
    if (a.kind == INT8_DENSE) memcpy(to, a.values + (first + g) * quads * WINDOW, quads * WINDOW);
    else {
      const uint8_t* bits = bits_of(a, first + g);
      const int8_t* from = a.values + a.pos[first + g];
      for (int64_t k = 0; k < quads; k++) from = expand_quad(bits + 8 * k, from, to + k * WINDOW);
    }
    memset(to + quads * WINDOW, 0, (padded - quads) * WINDOW);
  }
  return {room, pitch};
}
