// Products of lines by vectors: T tokens and G groups of rows at a time, their sums in registers.
//
// With up to four tokens a line is expanded in registers, used, and never written. With more, a group is expanded to memory
// once for all tokens of the set. With AMX only one token comes here: 2048x2048 at 50 % takes 176 us, 205 without asking for
// values in advance, and 250 by tiles.

// One line of each group. Sums of few tokens are in several parts, by turns, so that a product needn't wait for the one before it.
template <class Lines, int T, int G> INLINE void dot_line_of(Lines (&lines)[G], const Bf16* x, int64_t ldx, Sums (&sums)[G][T]) {
  Line line[G];
#pragma GCC unroll 2
  for (int g = 0; g < G; g++) line[g] = lines[g].template next<T == 1>();
#pragma GCC unroll 12
  for (int t = 0; t < T; t++) {
    const Two two = two_of(x + t * ldx);
#pragma GCC unroll 2
    for (int g = 0; g < G; g++) sums[g][t] = dot_line(sums[g][t], two, line[g]);
  }
}

template <class Lines, int T, int G, int PARTS>
INLINE void dot_lines(Lines (&lines)[G], int64_t count, const Bf16* x, int64_t ldx, Sums (&sums)[PARTS][G][T]) {
  int64_t k = 0;
  for (; k + PARTS <= count; k += PARTS) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++, x += 2) dot_line_of<Lines, T, G>(lines, x, ldx, sums[i]);
  }
  for (; k < count; k++, x += 2) dot_line_of<Lines, T, G>(lines, x, ldx, sums[0]);
}

// Tokens [t, t + T) of a set, groups [group, group + G). The last column of an odd number is one of two, with a zero behind it.
template <class Lines, int T, int G>
__attribute__((noinline)) static void vector_tokens(const TileProduct& p, const TokenSet& s, int64_t t, int64_t group, Lines (&given)[G]) {
  constexpr int PARTS = T == 1 ? 4 : T < 4 ? 2 : 1;
  Sums sums[PARTS][G][T] = {};
  Lines lines[G];  // a copy, which can be in registers
#pragma GCC unroll 2
  for (int g = 0; g < G; g++) lines[g] = given[g];
  const Bf16* x = s.x + t * s.ldx;
  dot_lines<Lines, T, G, PARTS>(lines, p.a.cols / 2, x, s.ldx, sums);
  if (p.a.cols % 2) {
    Bf16 last[2 * T] = {};
    for (int i = 0; i < T; i++) last[2 * i] = x[i * s.ldx + p.a.cols - 1];
    dot_lines<Lines, T, G, PARTS>(lines, 1, last, 2, sums);
  }
#pragma GCC unroll 2
  for (int g = 0; g < G; g++) {
    alignas(64) float all[T * 16];
#pragma GCC unroll 12
    for (int i = 0; i < T; i++) {
      for (int part = 1; part < PARTS; part++) sums[0][g][i] += sums[part][g][i];
      store<16>(all + i * 16, sums[0][g][i]);
    }
    put(p, s.token + t, T, group + g, all);
  }
}

template <int T> static void few_by_vectors(const TileProduct& p, const TokenSet& s, int64_t g0, int64_t g1) {
  for (int64_t g = g0; g < g1; g++) {
    Expanding lines[1] = {{p.a, g}};
    vector_tokens<Expanding, T, 1>(p, s, 0, g, lines);
  }
}

template <int T, int G> static void stored_tokens(const TileProduct& p, const TokenSet& s, int64_t t, int64_t group, const Bf16* room) {
  Stored lines[G];
  for (int g = 0; g < G; g++) lines[g] = {room + g * p.a.pairs() * LINE};
  vector_tokens<Stored, T, G>(p, s, t, group, lines);
}

template <int G> static void many_by_vectors(const TileProduct& p, const TokenSet& s, int64_t group, Bf16* room) {
  for (int g = 0; g < G; g++) {
    Expanding lines(p.a, group + g);
    expand_lines(lines, p.a.pairs(), room + g * p.a.pairs() * LINE);
  }
  int64_t t = 0;
  if constexpr (WIDTH == 16)
    for (; t + 12 <= s.tokens; t += 12) stored_tokens<12, G>(p, s, t, group, room);
  for (; t + 4 <= s.tokens; t += 4) stored_tokens<4, G>(p, s, t, group, room);
  for (; t < s.tokens; t++) stored_tokens<1, G>(p, s, t, group, room);
}

static void by_vectors(const TileProduct& p, const TokenSet& s, int64_t g0, int64_t g1, Bf16* room) {
  if (s.tokens == 1) return few_by_vectors<1>(p, s, g0, g1);
  if (s.tokens == 2) return few_by_vectors<2>(p, s, g0, g1);
  if (s.tokens == 3) return few_by_vectors<3>(p, s, g0, g1);
  if (s.tokens == 4) return few_by_vectors<4>(p, s, g0, g1);
  for (; g0 + 2 <= g1; g0 += 2) many_by_vectors<2>(p, s, g0, room);
  if (g0 < g1) many_by_vectors<1>(p, s, g0, room);
}
