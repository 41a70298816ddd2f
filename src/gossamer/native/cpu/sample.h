// grad[place] = sum over tokens of left[token, row] * right[token, col]: the gradient of the values; one thread's share.
//
// The same panels as the product's. For each step of a group, W lanes at a time: T multiply-adds for each lane, then the
// W vectors are summed over their lanes as they are transposed, and added to W gradients at once.
// Floor for one value and N = T * W tokens: T FMAs, 2 T loads, and 3 shuffles or adds: the loads bind, at half of the FMA
// ceiling.

template <int W, int T>
static void sample_tile(const Rows& a, int64_t b, int64_t k, const float* left, const float* right, float* grad) {
  constexpr int N = T * W;
  for (int64_t g = 0; g < a.groups(); g++) {
    const int32_t* row = a.row_of(b, k, g);
    const float* line[LANES];
    for (int l = 0; l < LANES; l++) line[l] = left + int64_t(row[l]) * N;
    const int64_t first = a.first(b, k, g), steps = a.steps(b, k, g);
    Columns at(a);
    const float* from = right;
    for (int64_t j = 0, rest = a.per; j < steps; j++, rest--) {
      if (a.per && rest == 0) rest = a.per, from += a.window * N;
      at.go_to(first + j);
      for (int s = 0; s < LANES; s += W) {
        const int64_t place = (first + j) * LANES + s;
        Vec<W> acc[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; l++) {
          const float *x = from + int64_t(at.column[s + l]) * N, *y = line[s + l];
          acc[l] = load<W>(x) * load<W>(y);
#pragma GCC unroll 4
          for (int t = 1; t < T; t++) acc[l] += load<W>(x + t * W) * load<W>(y + t * W);
        }
        float* to = grad + place;
        store<W>(to, load<W>(to) + sums<W>(acc));
      }
    }
  }
}

template <int W, int T>
static void sample_tokens(const Sample& p, int64_t first, int64_t tokens, int64_t b) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  const int64_t rows = a.height(b);
  float* left = scratch((a.block + 1 + a.lines()) * N * sizeof(float));
  float* right = left + (a.block + 1) * N;
  memset(left + rows * N, 0, (a.block + 1 - rows) * N * sizeof(float));
  pack_panel<W, T>(p.left + first * p.ldl, p.ldl, tokens, b * a.block, rows, left);
  for (int64_t k = 0; k < a.tiles(); k++) {
    pack_panel<W, T>(p.right + first * p.ldr, p.ldr, tokens, k * a.tile, a.width(k), right);
    sample_tile<W, T>(a, b, k, left, right, p.grad);
  }
}

// Places without an entry get a zero, whatever the operands hold.
static void clear_unused(const Sample& p, int64_t b) {
  const Rows& a = p.a;
  for (int64_t k = 0; k < a.tiles(); k++)
    for (int64_t g = 0; g < a.groups(); g++) {
      const int64_t first = a.first(b, k, g), steps = a.steps(b, k, g);
      Columns at(a);
      for (int64_t j = first; j < first + steps; j++) {
        at.go_to(j);
        for (int l = 0; l < LANES; l++)
          if (!at.entry[l]) p.grad[j * LANES + l] = 0.0f;
      }
    }
}
