// The activations that kernels apply to a sum: ReLU, GELU (by the error function) and SiLU, W at a time.
//
// Floor: 11 vector operations for an exponential, 24 for GELU; no table, no call: libm's erff, one lane at a time, took 13 ns
// a value, five times as long as the product at 90 %, 768 columns.
// Coefficients: weighted Chebyshev fits in double precision; relative error of exp 1.0e-7, error of GELU 1.6e-7 |v|.

template <int W> struct Bits {
  typedef uint32_t of __attribute__((vector_size(W * 4), may_alias));
};

template <int W> INLINE Vec<W> polynomial(Vec<W> x, const float* c, int degree) {
  Vec<W> sum = c[degree] - Vec<W>{};
#pragma GCC unroll 8
  for (int i = degree - 1; i >= 0; i--) sum = sum * x + c[i];
  return sum;
}

// 2^k e^r with v = k ln 2 + r; beyond -87 and 88 as there. A NaN stays one.
template <int W> INLINE Vec<W> exponential(Vec<W> v) {
  using U = typename Bits<W>::of;
  static constexpr float C[] = {1.0f, 1.0f, 0.5f, 0.16666415333747864f, 0.041666217148303986f, 0.008375128731131554f,
                                0.001394858118146658f};
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction, and its last bits are the integer
  const Vec<W> low = -87.0f - Vec<W>{}, high = 88.0f - Vec<W>{};
  v = v < low ? low : v;
  v = v > high ? high : v;
  const Vec<W> rounded = v * 1.44269504f + ROUND, k = rounded - ROUND;
  const Vec<W> r = v - k * 0.693145752f - k * 1.42860677e-6f;  // ln 2 in two parts
  const U power = ((U)rounded << 23) + 0x3F800000u;
  return polynomial<W>(r, C, 6) * (Vec<W>)power;
}

// v Phi(v) = max(v, 0) - t Q(t) with t = |v| and Q(t) = Phi(-t) = 2^p(t): one polynomial serves all v, and nothing cancels.
// p is a weighted fit of log2 Q up to 9, where t Q(t) is 1e-18. A NaN stays one.
template <int W> INLINE Vec<W> gelu(Vec<W> v) {
  using U = typename Bits<W>::of;
  static constexpr float LOG_Q[] = {-0.9999998912279899f,    -1.1511111037438437f,     -0.45915339308921016f,
                                    -0.05268302844064154f,   0.007362392770029431f,    -0.00038498034037837115f,
                                    -7.728448908767626e-05f, 1.5592379991885562e-05f,  -8.188992517121034e-07f};
  static constexpr float POWER[] = {1.0000000716546784f,  0.6931469670645354f,   0.2402211972386341f,
                                    0.05550713273863789f, 0.009675541333518611f, 0.0013276471874395545f};  // 2^f, |f| <= 1/2
  constexpr float ROUND = 12582912.0f;  // as above
  const Vec<W> zero = {}, nine = 9.0f - zero;
  Vec<W> t = (Vec<W>)((U)v & 0x7FFFFFFFu);
  t = t > nine ? nine : t;
  const Vec<W> log = polynomial<W>(t, LOG_Q, 8), rounded = log + ROUND, f = log - (rounded - ROUND);
  const Vec<W> q = (Vec<W>)((U)polynomial<W>(f, POWER, 5) + ((U)rounded << 23));
  return (v < zero ? zero : v) - t * q;
}

template <int W, int ACTIVATION> INLINE Vec<W> activated(Vec<W> v) {
  const Vec<W> zero = {};
  if constexpr (ACTIVATION == RELU) return v < zero ? zero : v;  // a NaN stays one
  if constexpr (ACTIVATION == GELU) return gelu<W>(v);
  if constexpr (ACTIVATION == SILU) return v / (1.0f + exponential<W>(-v));
  return v;
}

template <int W> static Vec<W> activate(Vec<W> v, int64_t activation) {
  if (activation == RELU) return activated<W, RELU>(v);
  if (activation == GELU) return activated<W, GELU>(v);
  if (activation == SILU) return activated<W, SILU>(v);
  return v;
}

INLINE float activate_one(float v, int64_t activation) {
  Vec<4> one = {v, 0, 0, 0};
  return activation ? activate<4>(one, activation)[0] : v;
}
