// DENSE, and BITMAP once it is expanded: rows are the lanes; four activations of a token to all of them, times four columns
// of sixteen rows.
//
// Floor, 64 products: one dot product. G groups and T tokens: G loads and T broadcasts for G * T of them.

template <int G, int T>
__attribute__((noinline)) static bool dense_tokens(const Int8Product& p, const Panel& values, int64_t group, int64_t token, int64_t tokens,
                                                   const uint8_t* q, int64_t pitch, const float* scale, const int32_t* zero) {
  const int64_t quads = p.a.quads(), next = values.pitch;
  Sums acc[G][T];
#pragma GCC unroll 4
  for (int g = 0; g < G; g++)
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) acc[g][t] = no_sums();
  const int8_t* v = values.v;
  const uint8_t* x[(T + 2) / 3];
#pragma GCC unroll 16
  for (int t = 0; t < T; t += 3) x[t / 3] = q + t * pitch;
  for (int64_t k = 0; k < quads; k++, v += WINDOW) {
    Weights w[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) w[g] = load_weights(v + g * next);
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
      const Bytes four = four_bytes(x[t / 3] + t % 3 * pitch);
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) acc[g][t] = dot(acc[g][t], four, w[g]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; t += 3) x[t / 3] += 4;
  }
  bool good = true;
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) good &= put<T>(p, (group + g) * GROUP, acc[g], token, tokens, scale, zero);
  return good;
}
