// Attention against double precision: odd sizes, masks of every kind, no keys, numbers that are not finite.

struct AttentionCase {
  int64_t batch, heads, queries, keys, depth;
  int mask;  // 0 none, 1 all True, 2 the same keys for all queries, 3 any, 4 any, keys apart in memory, 5 one for all batches
};

static void attention_case(const Kernels& kernels, const AttentionCase& c) {
  const int64_t token = 3 * c.heads * c.depth, most = c.queries > c.keys ? c.queries : c.keys;
  std::vector<float> x(c.batch * most * token + 1);  // q, k and v as one projection writes them
  for (float& v : x) v = 3 * number();
  std::vector<uint8_t> mask(c.batch * c.queries * c.keys * 2 + 1, 1);
  Attention p{};
  p.batch = c.batch, p.heads = c.heads, p.queries = c.queries, p.keys = c.keys, p.depth = c.depth, p.scale = 0.3f;
  p.q = {x.data(), most * token, c.depth, token}, p.k = {x.data() + token / 3, most * token, c.depth, token};
  p.v = {x.data() + token / 3 * 2, most * token, c.depth, token};
  p.mask = c.mask ? mask.data() : nullptr, p.mask_key = c.mask == 4 ? 2 : 1, p.mask_query = p.mask_key * c.keys;
  p.mask_batch = c.mask == 5 ? 0 : p.mask_query * c.queries;
  for (int64_t i = 0; i < c.batch * c.queries && c.mask > 1; i++)
    for (int64_t j = 0; j < c.keys; j++) {
      const int64_t row = c.mask == 2 ? i / c.queries * c.queries : i;
      uint8_t& to = mask[i * p.mask_query + j * p.mask_key];
      to = row == i ? uint8_t(next() % 3 != 0) : mask[row * p.mask_query + j];
      if (c.mask >= 3 && i == c.queries / 2) to = 0;  // a query without keys
    }
  std::vector<float> out(c.batch * c.queries * c.heads * c.depth), again(out);
  const auto run = [&](std::vector<float>& to, int64_t parts) {
    p.out = to.data();
    const int64_t items = kernels.attention_items(p);
    for (int64_t i = 0; i < parts; i++) kernels.attention(p, items * i / parts, items * (i + 1) / parts);
  };
  run(out, 1), run(again, 3);
  if (memcmp(out.data(), again.data(), out.size() * 4) && failures++ < 10) printf("attention in parts, %s\n", kernels.name);
  std::vector<double> e(c.keys);
  for (int64_t b = 0; b < c.batch; b++)
    for (int64_t h = 0; h < c.heads; h++)
      for (int64_t i = 0; i < c.queries; i++) {
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < c.keys; j++) {
          e[j] = 0;
          for (int64_t d = 0; d < c.depth; d++)
            e[j] += double(p.q.data[b * p.q.batch + h * c.depth + i * token + d]) * p.k.data[b * p.k.batch + h * c.depth + j * token + d];
          e[j] *= p.scale;
          if (p.mask && !p.mask[b * p.mask_batch + i * p.mask_query + j * p.mask_key]) e[j] = -INFINITY;
          top = e[j] > top ? e[j] : top;
        }
        for (int64_t j = 0; j < c.keys; j++) e[j] = top == -INFINITY ? 0 : std::exp(e[j] - top), sum += e[j];
        for (int64_t d = 0; d < c.depth; d++) {
          double want = 0, size = 0;
          for (int64_t j = 0; j < c.keys && sum > 0; j++) {
            const double term = e[j] / sum * p.v.data[b * p.v.batch + h * c.depth + j * token + d];
            want += term, size += std::fabs(term);
          }
          const double got = out[((b * c.queries + i) * c.heads + h) * c.depth + d];
          if (!(std::fabs(got - want) <= (c.depth * 9 + c.keys + 20) * 1.2e-7 * size) && failures++ < 10)
            printf("attention %s %ldx%ld depth %ld mask %d: %g, must be %g\n", kernels.name, long(c.queries), long(c.keys), long(c.depth), c.mask, got, want);
        }
      }
  cases++;
}

// A query with a NaN gives NaN, and no other query.
static void attention_bad(const Kernels& kernels) {
  const int64_t tokens = 40, depth = 16;
  std::vector<float> q(tokens * depth, 0.5f), k(q), v(q), out(q);
  const float bad[] = {NAN, -NAN, INFINITY};
  for (int i = 0; i < 3; i++) {
    uint32_t bits = 0x7FFFFFFF;  // a NaN whose bits are all 1
    q[7 * depth + 3] = bad[i];
    if (i == 1) memcpy(&q[7 * depth + 3], &bits, 4);
    Attention p{};
    p.q = {q.data(), 0, 0, depth}, p.k = {k.data(), 0, 0, depth}, p.v = {v.data(), 0, 0, depth}, p.out = out.data();
    p.batch = p.heads = 1, p.queries = p.keys = tokens, p.depth = depth, p.scale = 1.0f;
    kernels.attention(p, 0, kernels.attention_items(p));
    for (int64_t t = 0; t < tokens; t++)
      if ((t == 7) == (out[t * depth] == out[t * depth]) && failures++ < 10) printf("attention %s: token %ld is %g\n", kernels.name, long(t), out[t * depth]);
    cases++;
  }
}

static void all_attention(const Kernels& kernels) {
  for (int mask = 0; mask < 6; mask++)
    for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 9}, {16, 16}, {33, 40}, {70, 17}, {3, 0}})
      for (int64_t depth : {1, 8, 12, 32}) attention_case(kernels, {2, 3, queries, keys, depth, mask});
  attention_bad(kernels);
}
