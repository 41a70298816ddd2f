// A *line* is a pair of columns of sixteen rows, 32 values in bfloat16. Lines of a group are expanded one after the other, in
// registers or into memory, and multiplied by the activations of a few tokens in these two columns.
//
// Floor of a line: 4 bytes of bits and 2 for each value are read; expanding (vpexpandw) takes two cycles of one port on Intel,
// and a product (vdpbf16ps) one cycle for each token.

constexpr int64_t LINE = 32;   // values
using Sums = Vec<16>;          // of sixteen rows
constexpr int64_t AHEAD = 4096;  // bytes

#if defined(__AVX512VBMI2__) && WIDTH == 16 && (defined(__clang__) ? __clang_major__ >= 11 : __GNUC__ >= 11)
using Line = __m512i;

INLINE Line load_line(const Bf16* at) { return _mm512_loadu_si512(at); }
INLINE void store_line(Bf16* to, Line line) { _mm512_storeu_si512(to, line); }

// Reads just the values that are kept: nothing is behind the last ones of a weight. In place, as in int8_bitmap.h.
INLINE Line expanded(uint32_t bits, const Bf16* from, const Bf16* end) {
  Line v;
  if (__builtin_expect(end - from >= LINE, 1)) v = _mm512_loadu_si512(from);
  else v = _mm512_maskz_loadu_epi16((__mmask32)((uint64_t(1) << (end - from)) - 1), from);
  asm("vpexpandw %0, %0%{%1%}%{z%}" : "+v"(v) : "Yk"((__mmask32)bits));
  return v;
}

using Two = __m512i;  // activations of a token, in all lanes
INLINE Two two_of(const Bf16* x) {
  int32_t both;
  memcpy(&both, x, 4);
  return _mm512_set1_epi32(both);
}
INLINE Sums dot_line(Sums sums, Two x, Line line) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(line), "v"(x));
  return sums;
}
#else
typedef uint32_t Words __attribute__((vector_size(64), may_alias));
struct Line {
  Words of;
};

INLINE Line load_line(const Bf16* at) {
  Line line;
  memcpy(&line, at, sizeof line);
  return line;
}
INLINE void store_line(Bf16* to, const Line& line) { memcpy(to, &line, sizeof line); }

INLINE Line expanded(uint32_t bits, const Bf16* from, const Bf16*) {
  Bf16 to[LINE] = {};
  for (; bits; bits &= bits - 1) to[__builtin_ctz(bits)] = *from++;
  return load_line(to);
}

struct Two {
  float even, odd;
};
INLINE Two two_of(const Bf16* x) { return {x[0], x[1]}; }
INLINE Sums dot_line(Sums sums, Two x, const Line& line) {
  return sums + (Sums)(line.of << 16) * x.even + (Sums)(line.of & 0xFFFF0000u) * x.odd;
}
#endif

// The lines of a group, expanded as they are read.
struct Expanding {
  const uint32_t* bits;
  const Bf16 *from, *end;  // of all values
  Expanding() = default;
  INLINE_MEMBER Expanding(const TileRows& a, int64_t group)
      : bits(a.bits + group * a.pairs()), from(a.values + a.pos[group]), end(a.values + a.pos[a.groups()]) {}
  // One stream of values is asked for in advance; several at once are not, that takes longer.
  template <bool ALONE = false> INLINE_MEMBER Line next() {
    if constexpr (ALONE) __builtin_prefetch((const char*)from + AHEAD), __builtin_prefetch((const char*)bits + AHEAD / 4);
    const uint32_t kept = *bits++;
    const Line line = expanded(kept, from, end);
    from += __builtin_popcount(kept);
    return line;
  }
};

// The lines of a group that are expanded already.
struct Stored {
  const Bf16* at;
  template <bool = false> INLINE_MEMBER Line next() {
    const Line line = load_line(at);
    at += LINE;
    return line;
  }
};

// Expands `count` lines to `to`.
INLINE void expand_lines(Expanding& lines, int64_t count, Bf16* to) {
  for (int64_t k = 0; k < count; k++, to += LINE) store_line(to, lines.next());
}
