// grad[place] = sum over tokens of left[token, row] * right[token, col]: the gradient of the values; one thread's share.
//
// The same panels as the product's. For each step of a group, W lanes at a time: T multiply-adds for each lane, then the
// W vectors are summed over their lanes as they are transposed, and added to W gradients at once.
// Floor for one value and N = T * W tokens: T FMAs, 2 T loads, and 3 shuffles or adds: the loads bind, at half of the FMA
// ceiling.

template <int W, int T>
static void sample_tile(const Rows& a, int64_t b, int64_t k, const float* left, const float* right, float* grad) {
  constexpr int N = T * W;
  const int64_t groups = a.groups(), at = (b * a.tiles() + k) * groups;
  const int32_t *pos = a.pos + at, *row = a.row + at * LANES;
  for (int64_t g = 0; g < groups; g++, row += LANES) {
    const float* line[LANES];
    for (int l = 0; l < LANES; l++) line[l] = left + int64_t(row[l]) * N;
    for (int64_t j = pos[g]; j < pos[g + 1]; j++)
      for (int s = 0; s < LANES; s += W) {
        const uint8_t* c = a.crd + j * LANES + s;
        Vec<W> acc[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; l++) {
          const float *x = right + size_t(c[l]) * N, *y = line[s + l];
          acc[l] = load<W>(x) * load<W>(y);
#pragma GCC unroll 4
          for (int t = 1; t < T; t++) acc[l] += load<W>(x + t * W) * load<W>(y + t * W);
        }
        float* to = grad + j * LANES + s;
        store<W>(to, load<W>(to) + sums<W>(acc));
      }
  }
}

template <int W, int T>
static void sample_tokens(const Sample& p, int64_t first, int64_t tokens, int64_t b) {
  constexpr int N = T * W;
  const Rows& a = p.a;
  float* left = scratch((a.block + a.tile + 1) * N * sizeof(float));
  float* right = left + a.block * N;
  const int64_t rows = a.rows - b * a.block < a.block ? a.rows - b * a.block : a.block;
  memset(left + rows * N, 0, (a.block - rows) * N * sizeof(float));
  pack_panel<W, T>(p.left + first * p.ldl, p.ldl, tokens, b * a.block, rows, left);
  for (int64_t k = 0; k < a.tiles(); k++) {
    const int64_t count = a.cols - k * a.tile < a.tile ? a.cols - k * a.tile : a.tile;
    pack_panel<W, T>(p.right + first * p.ldr, p.ldr, tokens, k * a.tile, count, right);
    memset(right + a.tile * N, 0, N * sizeof(float));
    sample_tile<W, T>(a, b, k, left, right, p.grad);
  }
}

// Places without an entry get a zero, whatever the operands hold.
static void clear_unused(const Sample& p, int64_t b) {
  const Rows& a = p.a;
  const int64_t each = a.tiles() * a.groups();
  for (int64_t i = int64_t(a.pos[b * each]) * LANES; i < int64_t(a.pos[(b + 1) * each]) * LANES; i++)
    if (a.crd[i] == a.tile) p.grad[i] = 0.0f;
}
