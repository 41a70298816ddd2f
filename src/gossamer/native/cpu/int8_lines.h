// LINES, blocks of 1x4: tokens are the lanes; each block of a row is multiplied by the line of its four columns.
//
// Floor, 64 products: one dot product and one load of activations, both one a cycle on Zen 4. Sixteen weights are loaded
// for four rows, and spread by shuffles.

// Lines of N = 16 * V tokens: panel[quad of columns][token][4].
template <int V> static void lines_panel(const Int8Weight& a, const uint8_t* q, int64_t pitch, uint8_t* panel) {
  const int64_t quads = a.quads();
  for (int64_t c = 0; c < quads; c += WIDTH)
    for (int t = 0; t < V * GROUP; t += WIDTH) {
      Vec<WIDTH> m[WIDTH];
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; i++) m[i] = load_bits<WIDTH>(q + (t + i) * pitch + c * 4);
      transpose<WIDTH>(m);
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; i++) store_bits<WIDTH>(panel + ((c + i) * V * GROUP + t) * 4, m[i]);
    }
}

template <int V>
INLINE void lines_steps(const Int8Weight& a, int64_t first, int64_t last, const uint8_t* panel, Sums (&acc)[4][V]) {
  const uint8_t* c = a.crd + first * 4;
  const int8_t* v = a.values + first * 16;
  for (const uint8_t* end = a.crd + last * 4; c != end; c += 4, v += 16) {
    const Sixteen some = load_sixteen(v);
    uint32_t codes;
    memcpy(&codes, c, 4);
    const Weights w[4] = {to_all<0>(some), to_all<1>(some), to_all<2>(some), to_all<3>(some)};
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      const uint8_t* x = panel + (codes >> (8 * r) & 255) * (V * WINDOW);
#pragma GCC unroll 4
      for (int t = 0; t < V; t++) acc[r][t] = dot(acc[r][t], load_bytes(x + t * WINDOW), w[r]);
    }
  }
}

// Sixteen rows of sixteen tokens from sums[row][N] to out.
template <int V>
static bool lines_out(const Int8Product& p, const int32_t* sums, int64_t row, int64_t token, int64_t tokens, const float* scale,
                      const int32_t* zero) {
  Sums turned[GROUP];
  if constexpr (WIDTH == GROUP) {
    Vec<WIDTH> m[WIDTH];
#pragma GCC unroll 16
    for (int l = 0; l < GROUP; l++) m[l] = (Vec<WIDTH>)load_sums(sums + l * V * GROUP);
    transpose<WIDTH>(m);
#pragma GCC unroll 16
    for (int l = 0; l < GROUP; l++) turned[l] = (Sums)m[l];
  } else {
    alignas(64) int32_t n[GROUP][GROUP];
    for (int i = 0; i < GROUP; i++)
      for (int j = 0; j < GROUP; j++) n[j][i] = sums[i * V * GROUP + j];
    for (int l = 0; l < GROUP; l++) turned[l] = load_sums(n[l]);
  }
  return put<GROUP>(p, row, turned, token, tokens, scale, zero);
}

// Blocks [b0, b1) of rows for up to N tokens.
template <int V>
static bool lines_tokens(const Int8Product& p, int64_t b0, int64_t b1, int64_t token, int64_t tokens, const uint8_t* q,
                         int64_t pitch, const float* scale, const int32_t* zero, uint8_t* room) {
  constexpr int64_t N = V * GROUP;
  const Int8Weight& a = p.a;
  const int64_t tiles = a.tiles(), units = a.block / 4;
  lines_panel<V>(a, q, pitch, room);
  int32_t* sums = (int32_t*)(room + pitch * N);  // a line is left for blocks that are not used
  bool good = true;
  for (int64_t b = b0; b < b1; b++) {
    for (int64_t k = 0; k < tiles; k++)
      for (int64_t u = 0; u < units; u++) {
        const int64_t unit = (b * tiles + k) * units + u;
        Sums acc[4][V];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
          for (int t = 0; t < V; t++) acc[r][t] = no_sums();
        lines_steps<V>(a, a.pos[unit], a.pos[unit + 1], room + k * a.lines * N * 4, acc);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
          int32_t* to = sums + int64_t(a.row[unit * 4 + r]) * N;
#pragma GCC unroll 4
          for (int t = 0; t < V; t++) store_sums(to + t * GROUP, k ? add_sums(acc[r][t], load_sums(to + t * GROUP)) : acc[r][t]);
        }
      }
    for (int64_t row = b * a.block; row < (b + 1) * a.block && row < a.rows; row += GROUP)
      for (int t = 0; t < V && t * GROUP < tokens; t++)
        good &= lines_out<V>(p, sums + (row - b * a.block) * N + t * GROUP, row, token + t * GROUP, tokens - t * GROUP,
                             scale + t * GROUP, zero + t * GROUP);
  }
  return good;
}
