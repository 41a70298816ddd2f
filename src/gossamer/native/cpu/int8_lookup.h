// LOOKUP: rows are the lanes; each step looks up four activations of each row in a window, and multiplies them.
//
// Floor, 64 products of T tokens: T permutes (vpermb) and T dot products (vpdpbusd), T loads of activations, two of the
// weight. Zen 4 starts a dot product on two of its pipes and a permute on two, of which they share one, each for two
// cycles: 4 / 3 cycles for both.

// Windows of T tokens: panel[window][token][WINDOW]; row t of q begins at q + t * pitch.
template <int T> static void lookup_panel(const Int8Weight& a, const uint8_t* q, int64_t pitch, uint8_t* panel) {
  const int64_t windows = a.windows();
  for (int t = 0; t < T; t++)
    for (int64_t w = 0; w < windows; w++)
      store_bytes(panel + (w * T + t) * WINDOW, load_bytes(q + t * pitch + w * a.stride));
}

// Where the four activations of each row of a step are in their window: K tables of 16 bytes, or quads (K = 0).
template <int K> struct PlacesOf {
  typedef Singles<K> type;
  static constexpr int BYTES = WINDOW;
};
template <> struct PlacesOf<0> {
  typedef Quads type;
  static constexpr int BYTES = WINDOW / 4;
};

template <int T, int TALL, int K>
INLINE void lookup_steps(const Int8Weight& a, int64_t first, int64_t last, const uint8_t* panel, Sums (&acc)[TALL][T]) {
  constexpr int BYTES = PlacesOf<K>::BYTES;
  const uint8_t* c = a.crd + first * BYTES;
  const int8_t* v = a.values + first * (WINDOW * TALL);
  for (int64_t s = first; s < last; s++, c += BYTES, v += WINDOW * TALL) {
    const typename PlacesOf<K>::type places(c);
    const uint8_t* x = panel + int64_t(a.line[s]) * (T * WINDOW);
    asm("" : "+r"(x));  // one register; gcc 12 would keep a sum of two for each token
    Weights w[TALL];
#pragma GCC unroll 4
    for (int i = 0; i < TALL; i++) w[i] = load_weights(v + i * WINDOW);
#pragma GCC unroll 24
    for (int t = 0; t < T; t++) {
      const Bytes found = places.look(x + t * WINDOW);
#pragma GCC unroll 4
      for (int i = 0; i < TALL; i++) acc[i][t] = dot(acc[i][t], found, w[i]);
    }
  }
}

struct LookupTokens {  // up to T tokens, ready to be looked up
  const Int8Product& p;
  int64_t token, tokens, tiles;
  const float* scale;
  const int32_t* zero;
  const uint8_t* panel;
};

// Tile k of a group, whose steps are [pos[0], pos[1]); sums of earlier tiles are in `kept`.
template <int T, int TALL, int K>
INLINE bool lookup_group(const LookupTokens& s, int64_t group, int64_t k, const int32_t* pos, int32_t* kept) {
  const Int8Weight& a = s.p.a;
  Sums acc[TALL][T];
#pragma GCC unroll 4
  for (int i = 0; i < TALL; i++)
#pragma GCC unroll 24
    for (int t = 0; t < T; t++) acc[i][t] = k ? load_sums(kept + (i * T + t) * GROUP) : no_sums();
  lookup_steps<T, TALL, K>(a, pos[0], pos[1], s.panel + k * a.lines * (T * WINDOW), acc);
  if (k + 1 < s.tiles) {
#pragma GCC unroll 4
    for (int i = 0; i < TALL; i++)
#pragma GCC unroll 24
      for (int t = 0; t < T; t++) store_sums(kept + (i * T + t) * GROUP, acc[i][t]);
    return true;
  }
  if constexpr (TALL == 4) {
#pragma GCC unroll 24
    for (int t = 0; t < T; t++) {
      Sums four[4] = {acc[0][t], acc[1][t], acc[2][t], acc[3][t]};
      interleave(four);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) acc[i][t] = four[i];
    }
  }
  bool good = true;
#pragma GCC unroll 4
  for (int i = 0; i < TALL; i++) {
    const int64_t row = (group * TALL + i) * GROUP;
    if (row < a.rows) good &= put<T>(s.p, row, acc[i], s.token, s.tokens, s.scale, s.zero);
  }
  return good;
}

// With many sums they have the registers of a function for themselves.
template <int T, int TALL, int K>
__attribute__((noinline)) static bool lookup_group_alone(const LookupTokens& s, int64_t group, int64_t k, const int32_t* pos, int32_t* kept) {
  return lookup_group<T, TALL, K>(s, group, k, pos, kept);
}

// Groups [g0, g1) for `sets` sets of tokens, while the weights of a group are in the first-level cache.
template <int T, int TALL, int K>
static bool lookup_groups(const Int8Weight& a, const LookupTokens* s, int sets, int64_t g0, int64_t g1, int32_t* kept) {
  constexpr int64_t HELD = BLOCK / (GROUP * TALL), SIZE = TALL * T * GROUP;
  const int64_t groups = a.units(), tiles = s->tiles;
  bool good = true;
  for (int64_t first = g0 / HELD * HELD; first < g1; first += HELD) {
    const int64_t count = groups - first < HELD ? groups - first : HELD;
    const int64_t from = g0 > first ? g0 : first, to = g1 < first + count ? g1 : first + count;
    for (int64_t k = 0; k < tiles; k++) {
      const int32_t* pos = a.pos + first * tiles + k * count - first;
      for (int64_t g = from; g < to; g++)
        if constexpr (T * TALL <= 4) good &= lookup_group<T, TALL, K>(s[0], g, k, pos + g, kept + (g - first) * SIZE);
        else
          for (int i = 0; i < sets; i++) good &= lookup_group_alone<T, TALL, K>(s[i], g, k, pos + g, kept + ((g - first) * sets + i) * SIZE);
    }
  }
  return good;
}
