// The activations that kernels apply to a sum: ReLU, GELU (by the error function) and SiLU, W at a time.
//
// Floor: 11 vector operations for an exponential, 26 for an error function; no table, no call: libm's erff, one lane at a
// time, took 13 ns a value, five times as long as the product at 90 %, 768 columns. Reached: GELU 0.8 ns a value, SiLU 0.35
// (Zen 4); torch's own GELU, a pass of its own, takes 0.5: both branches of erf are computed here.
// Coefficients: Chebyshev interpolation in double precision; relative error of exp 1.0e-7, of erf 1.6e-7.

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

template <int W> INLINE Vec<W> error_function(Vec<W> v) {
  using U = typename Bits<W>::of;
  static constexpr float NEAR[] = {1.1283791065216064f,   -0.3761262595653534f,    0.11283597350120544f,   -0.02685432881116867f,
                                   0.005189312156289816f, -0.0008018855005502701f, 7.882497448008507e-05f};  // erf(x) / x, of x^2
  static constexpr float FAR[] = {0.0007569686276838183f, 1.125925898551941f,     0.6390933394432068f,
                                  0.10331898182630539f,   -0.022621985524892807f, 0.0034368676133453846f,
                                  -0.0003175720339640975f, 1.3309389942151029e-05f};  // -log(1 - erf(x)), 1 <= x <= 4
  const U sign = (U)v & 0x80000000u;
  const Vec<W> four = 4.0f - Vec<W>{}, one = 1.0f - Vec<W>{};
  Vec<W> t = (Vec<W>)((U)v ^ sign);
  const Vec<W> near = v * polynomial<W>(v * v, NEAR, 6);
  const Vec<W> at = t > four ? four : t;
  const Vec<W> far = 1.0f - exponential<W>(-polynomial<W>(at, FAR, 7));
  return t < one ? near : (Vec<W>)((U)far | sign);
}

template <int W> static Vec<W> activate(Vec<W> v, int64_t activation) {
  const Vec<W> zero = {};
  if (activation == RELU) return v < zero ? zero : v;  // a NaN stays one
  if (activation == GELU) return 0.5f * v * (1.0f + error_function<W>(v * 0.70710678118654752f));
  if (activation == SILU) return v / (1.0f + exponential<W>(-v));
  return v;
}

INLINE float activate_one(float v, int64_t activation) {
  Vec<4> one = {v, 0, 0, 0};
  return activation ? activate<4>(one, activation)[0] : v;
}
