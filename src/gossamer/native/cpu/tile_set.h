// Some tokens of a product: their activations, with the last columns filled up to a whole line of 32, and which of them have
// an infinity or a NaN.

struct TokenSet {
  const Bf16* x;           // of the first token
  int64_t ldx, token, tokens;
  int64_t whole;           // columns that are read at x; a multiple of 32
  const Bf16* rest;        // [tokens][32]: the columns behind them, then zeros
};

constexpr int64_t MOST_TOKENS = 512;  // of a set

static bool all_finite(const Bf16* x, int64_t count) {
  uint16_t most = 0;
  for (int64_t i = 0; i < count; i++) {
    const uint16_t size = x[i].bits & 0x7FFF;
    most = size > most ? size : most;
  }
  return most < 0x7F80;
}

static TokenSet set_of_tokens(const TileProduct& p, int64_t token, int64_t tokens, Bf16* room) {
  const int64_t whole = p.a.cols / LINE * LINE, left = p.a.cols - whole;
  const Bf16* x = p.x + token * p.ldx;
  for (int64_t t = 0; t < tokens && left; t++) {
    memset((void*)(room + t * LINE), 0, LINE * sizeof(Bf16));
    memcpy((void*)(room + t * LINE), x + t * p.ldx + whole, left * sizeof(Bf16));
  }
  return {x, p.ldx, token, tokens, whole, room};
}

// Sixteen numbers to the nearest, ties to even, as narrow() of one after the other: a NaN stays one.
INLINE Types<16>::halves narrowed(Vec<16> v) {
  using U = typename Types<16>::words;
  const U bits = (U)v, rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const U good = (U)((bits & 0x7FFFFFFF) <= 0x7F800000);
  return __builtin_convertvector((rounded & good) | (0x7FC0 & ~good), Types<16>::halves);
}

// Sixteen outputs, or as many as there are rows.
template <int ACTIVATION> INLINE void put_rows(const TileProduct& p, int64_t token, int64_t group, Sums sums) {
  const int64_t row = group * 16;
  Bf16* out = p.out + token * p.ldo + row;
  if (__builtin_expect(p.a.rows - row >= 16, 1)) {
    if (p.bias) sums += load<16>(p.bias + row);
    const Types<16>::halves all = narrowed(activated<16, ACTIVATION>(sums));
    memcpy((void*)out, &all, sizeof all);
    return;
  }
  const int64_t rows = p.a.rows - row;
  alignas(64) float some[16] = {};
  if (p.bias) memcpy(some, p.bias + row, rows * sizeof(float));
  const Types<16>::halves all = narrowed(activated<16, ACTIVATION>(sums + load<16>(some)));
  memcpy((void*)out, &all, rows * sizeof(Bf16));
}

INLINE void put_any(const TileProduct& p, int64_t token, int64_t group, Sums sums) {
  if (p.activation == RELU) return put_rows<RELU>(p, token, group, sums);
  if (p.activation == GELU) return put_rows<GELU>(p, token, group, sums);
  if (p.activation == SILU) return put_rows<SILU>(p, token, group, sums);
  put_rows<NONE>(p, token, group, sums);
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
    put_any(p, token, g, load<16>(sums));
  }
}

static void exact_tokens(const TileProduct& p, const TokenSet& s, int64_t g0, int64_t g1) {
  for (int64_t t = 0; t < s.tokens; t++)
    if (!all_finite(s.x + t * s.ldx, p.a.cols)) exact_token(p, s.x + t * s.ldx, s.token + t, g0, g1);
}
