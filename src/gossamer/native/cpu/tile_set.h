// Some tokens of a product, their outputs, and what is done for those with an infinity or a NaN.

struct TokenSet {
  const Bf16* x;  // of the first token
  int64_t ldx, token, tokens;
};

static bool all_finite(const Bf16* x, int64_t count) {
  uint16_t most = 0;
  for (int64_t i = 0; i < count; i++) {
    const uint16_t size = x[i].bits & 0x7FFF;
    most = size > most ? size : most;
  }
  return most < 0x7F80;
}

// Sixteen numbers to the nearest, ties to even, as narrow() of one after the other: a NaN stays one.
INLINE Types<16>::halves narrowed(Vec<16> v) {
  using U = typename Types<16>::words;
  const U bits = (U)v, rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const U good = (U)((bits & 0x7FFFFFFF) <= 0x7F800000);
  return __builtin_convertvector((rounded & good) | (0x7FC0 & ~good), Types<16>::halves);
}

// Outputs of some tokens, at most sixteen, and of a group of rows.
template <int ACTIVATION> static void put_activated(const TileProduct& p, int64_t token, int64_t tokens, int64_t group, const float* sums) {
  const int64_t row = group * 16, rows = p.a.rows - row < 16 ? p.a.rows - row : 16;
  alignas(64) float some[16] = {};
  if (p.bias) memcpy(some, p.bias + row, rows * sizeof(float));
  const Sums bias = load<16>(some);
  Bf16* out = p.out + token * p.ldo + row;
  for (int64_t t = 0; t < tokens; t++, sums += 16, out += p.ldo) {
    const Types<16>::halves all = narrowed(activated<16, ACTIVATION>(load<16>(sums) + bias));
    if (__builtin_expect(rows == 16, 1)) memcpy((void*)out, &all, sizeof all);
    else memcpy((void*)out, &all, rows * sizeof(Bf16));
  }
}

static void put(const TileProduct& p, int64_t token, int64_t tokens, int64_t group, const float* sums) {
  if (p.activation == RELU) return put_activated<RELU>(p, token, tokens, group, sums);
  if (p.activation == GELU) return put_activated<GELU>(p, token, tokens, group, sums);
  if (p.activation == SILU) return put_activated<SILU>(p, token, tokens, group, sums);
  put_activated<NONE>(p, token, tokens, group, sums);
}

// A token with an activation that is not finite: only positions that are kept are multiplied.
static void exact_token(const TileProduct& p, const Bf16* x, int64_t token, int64_t g0, int64_t g1) {
  const TileRows& a = p.a;
  for (int64_t g = g0; g < g1; g++) {
    alignas(64) float sums[16] = {};
    const Bf16* value = a.values + a.pos[g];
    const uint32_t* bits = a.bits + g * a.pairs();
    for (int64_t k = 0; k < a.pairs(); k++)
      for (uint32_t kept = bits[k]; kept; kept &= kept - 1) {
        const int bit = __builtin_ctz(kept);
        sums[bit / 2] += float(*value++) * float(x[2 * k + bit % 2]);
      }
    put(p, token, 1, g, sums);
  }
}

static void exact_tokens(const TileProduct& p, const TokenSet& s, int64_t g0, int64_t g1) {
  for (int64_t t = 0; t < s.tokens; t++)
    if (!all_finite(s.x + t * s.ldx, p.a.cols)) exact_token(p, s.x + t * s.ldx, s.token + t, g0, g1);
}
