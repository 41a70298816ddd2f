// grad[k, i, j] = sum over tokens of left[token, row] * right[token, col] at the stored blocks; one thread's share.
//
// The same panels as the product's: N tokens in the lanes. I x J places of a block at a time, I * J = W of them, so that
// their sums over the lanes come as one vector (vec.h): I + J loads for W multiply-adds.

template <int W, int T, int I>
INLINE void sample_places(const Blocks& a, const float* left, const float* right, int64_t i, int64_t j, float* grad) {
  constexpr int N = T * W, J = W / I;
  const float *row[I], *col[J];  // beyond the block: its last line again, and the sum is not stored
#pragma GCC unroll 4
  for (int r = 0; r < I; r++) row[r] = left + smaller(i + r, a.height - 1) * N;
#pragma GCC unroll 16
  for (int c = 0; c < J; c++) col[c] = right + smaller(j + c, a.width - 1) * N;
  Vec<W> acc[W];
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) {
    Vec<W> line[I];
#pragma GCC unroll 4
    for (int r = 0; r < I; r++) line[r] = load<W>(row[r] + t * W);
#pragma GCC unroll 16
    for (int c = 0; c < J; c++) {
      const Vec<W> x = load<W>(col[c] + t * W);
#pragma GCC unroll 4
      for (int r = 0; r < I; r++) acc[r * J + c] = t ? acc[r * J + c] + line[r] * x : line[r] * x;
    }
  }
  const Vec<W> all = sums<W>(acc);
  for (int r = 0; r < I && i + r < a.height; r++) {
    float* to = grad + (i + r) * a.width + j;
    for (int c = 0; c < J && j + c < a.width; c++) to[c] += all[r * J + c];
  }
}

template <int W, int T, int I>
static void sample_blocks(const BlockSample& p, const float* left, const float* right, int64_t begin, int64_t end) {
  constexpr int N = T * W, J = W / I;
  const Blocks& a = p.a;
  for (int64_t b = begin; b < end; b++)
    for (int64_t k = a.pos[b]; k < a.pos[b + 1]; k++)
      for (int64_t i = 0; i < a.height; i += I)
        for (int64_t j = 0; j < a.width; j += J)
          sample_places<W, T, I>(a, left + (b - begin) * a.height * N, right + a.crd[k] * a.width * N, i, j,
                                 p.grad + k * a.height * a.width);
}

template <int W, int T>
static void sample_panel(const BlockSample& p, int64_t first, int64_t tokens, int64_t begin, int64_t end) {
  constexpr int N = T * W;
  const Blocks& a = p.a;
  const int64_t high = (end - begin) * a.height, wide = a.across() * a.width, row = begin * a.height;
  float* left = scratch((high + wide + 2) * N * sizeof(float));
  float* right = left + (high + 1) * N;
  pack_block_panel<W, T>(p.left + first * p.ldl + row, p.ldl, tokens, smaller(a.rows - row, high), high, left);
  pack_block_panel<W, T>(p.right + first * p.ldr, p.ldr, tokens, a.cols, wide, right);
  if (a.height == 1) sample_blocks<W, T, 1>(p, left, right, begin, end);
  else if (a.height < 4) sample_blocks<W, T, 2>(p, left, right, begin, end);
  else sample_blocks<W, T, W == 4 ? 2 : 4>(p, left, right, begin, end);
}

// Places below the last row or right of the last column get a zero, whatever the operands hold.
static void clear_padding(const BlockSample& p, int64_t b) {
  const Blocks& a = p.a;
  const int64_t rows = smaller(a.rows - b * a.height, a.height);
  for (int64_t k = a.pos[b]; k < a.pos[b + 1]; k++) {
    const int64_t cols = smaller(a.cols - a.crd[k] * a.width, a.width);
    for (int64_t i = 0; i < a.height; i++)
      for (int64_t j = i < rows ? cols : 0; j < a.width; j++) p.grad[(k * a.height + i) * a.width + j] = 0.0f;
  }
}

static void block_sample(const BlockSample& p, int64_t begin, int64_t end) {
  constexpr int64_t N = 4 * WIDTH;
  for (int64_t first = 0; first < p.tokens; first += N) {
    const int64_t tokens = smaller(p.tokens - first, N);
    if (tokens <= WIDTH) sample_panel<WIDTH, 1>(p, first, tokens, begin, end);
    else sample_panel<WIDTH, 4>(p, first, tokens, begin, end);
  }
  for (int64_t b = begin; b < end; b++) clear_padding(p, b);
}
