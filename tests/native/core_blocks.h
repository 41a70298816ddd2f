// Compressed rows of blocks, for core_test.cpp: every array exactly as large as promised, results against plain loops.
struct BlockCase {
  Blocks a{};
  std::vector<float> values;
  std::vector<int32_t> pos, crd;
  std::vector<float> dense;
  std::vector<Bf16> halves;
};

static BlockCase some_blocks(int64_t rows, int64_t cols, int64_t height, int64_t width, unsigned one_in) {
  BlockCase c;
  c.a.rows = rows, c.a.cols = cols, c.a.height = height, c.a.width = width;
  c.dense.assign(rows * cols, 0.0f);
  c.pos.push_back(0);
  for (int64_t b = 0; b < c.a.down(); b++) {
    for (int64_t k = 0; k < c.a.across(); k++) {
      if (next() % one_in) continue;
      c.crd.push_back(int32_t(k));
      for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) {
          const int64_t r = b * height + i, q = k * width + j;
          c.values.push_back(r < rows && q < cols ? number() : 0.0f);
          if (r < rows && q < cols) c.dense[r * cols + q] = c.values.back();
        }
    }
    c.pos.push_back(int32_t(c.crd.size()));
  }
  c.a.pos = c.pos.data(), c.a.crd = c.crd.data(), c.a.values = c.values.data();
  return c;
}

static BlockCase bfloat16(BlockCase c) {  // the same pattern, its values rounded
  c.halves = rounded(c.values);
  const std::vector<Bf16> dense = rounded(c.dense);
  for (size_t i = 0; i < dense.size(); i++) c.dense[i] = dense[i];
  c.a.pos = c.pos.data(), c.a.crd = c.crd.data(), c.a.values = nullptr, c.a.halves = c.halves.data();
  return c;
}

static void near(double got, double want, double size, const char* what, const Blocks& a, int64_t tokens) {
  if (std::fabs(got - want) <= double(a.cols + tokens + 2) * 6e-8 * size) return;
  if (failures++ < 10)
    printf("%s of blocks %ldx%ld in %ldx%ld, tokens %ld: %g, must be %g\n", what, long(a.height), long(a.width),
           long(a.rows), long(a.cols), long(tokens), got, want);
}

static void block_product(const Kernels& kernels, const BlockCase& c, int64_t tokens) {
  const int64_t rows = c.a.rows, cols = c.a.cols;
  const std::unique_ptr<float[]> x(new float[tokens * cols]), out(new float[tokens * rows]), bias(new float[rows]);
  for (int64_t i = 0; i < tokens * cols; i++) x[i] = number();
  for (int64_t i = 0; i < rows; i++) bias[i] = number();
  BlockProduct p{c.a, x.get(), cols, tokens, bias.get(), NONE, out.get(), rows};
  const int64_t items = kernels.blocks.items(p), half = items / 2;
  kernels.blocks.product(p, 0, half), kernels.blocks.product(p, half, items);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t r = 0; r < rows; r++) {
      double sum = bias[r], size = std::fabs(bias[r]);
      for (int64_t j = 0; j < cols; j++) {
        const double term = double(x[t * cols + j]) * c.dense[r * cols + j];
        sum += term, size += std::fabs(term);
      }
      near(out[t * rows + r], sum, size, "product", c.a, tokens);
    }
  cases++;
}

static void block_sample(const Kernels& kernels, const BlockCase& c, int64_t tokens) {
  const int64_t rows = c.a.rows, cols = c.a.cols, height = c.a.height, width = c.a.width;
  const std::unique_ptr<float[]> left(new float[tokens * rows]), right(new float[tokens * cols]);
  const std::unique_ptr<float[]> grad(new float[c.values.size() + 1]());
  for (int64_t i = 0; i < tokens * rows; i++) left[i] = number();
  for (int64_t i = 0; i < tokens * cols; i++) right[i] = number();
  BlockSample p{c.a, left.get(), right.get(), rows, cols, tokens, grad.get()};
  const int64_t half = c.a.down() / 2;
  kernels.blocks.sample(p, 0, half), kernels.blocks.sample(p, half, c.a.down());
  for (int64_t b = 0; b < c.a.down(); b++)
    for (int32_t k = c.pos[b]; k < c.pos[b + 1]; k++)
      for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) {
          const int64_t r = b * height + i, q = c.crd[k] * width + j;
          double sum = 0, size = 0;
          for (int64_t t = 0; r < rows && q < cols && t < tokens; t++) {
            const double term = double(left[t * rows + r]) * right[t * cols + q];
            sum += term, size += std::fabs(term);
          }
          near(grad[(k * height + i) * width + j], sum, size, "sample", c.a, tokens);
        }
  cases++;
}

static void all_blocks(const Kernels& kernels) {
  const int64_t sizes[][2] = {{1, 1}, {4, 4}, {8, 8}, {16, 16}, {32, 32}, {1, 4}, {1, 16}, {2, 4}, {2, 8},
                              {4, 1}, {3, 5}, {5, 3}, {1, 3}, {6, 12}, {16, 4}, {70, 8}, {9, 24}};
  for (const auto& s : sizes)
    for (const auto& shape : {std::pair<int64_t, int64_t>{1, 1}, {64, 96}, {67, 37}, {130, 50}}) {
      const BlockCase c = some_blocks(shape.first, shape.second, s[0], s[1], 3);
      const BlockCase half = bfloat16(c);
      for (int64_t tokens : {1, 2, 3, 4, 7, 16, 17, 33, 65}) {
        block_product(kernels, c, tokens), block_sample(kernels, c, tokens);
        block_product(kernels, half, tokens);
      }
    }
  const BlockCase none = some_blocks(20, 20, 4, 4, 1000000);
  block_product(kernels, none, 5), block_sample(kernels, none, 5);
}

// Every bfloat16 survives the way there and back; what lies between two goes to the nearer, halfway to the even one.
static void conversions(const Kernels& kernels) {
  std::vector<Bf16> all(65536), back(65536);
  for (uint32_t i = 0; i < 65536; i++) all[i].bits = uint16_t(i);
  std::vector<float> wide(65536);
  kernels.widen(all.data(), wide.data(), 65536);
  kernels.narrow(wide.data(), back.data(), 65536);
  for (uint32_t i = 0; i < 65536; i++)
    if (back[i].bits != i && !(std::isnan(wide[i]) && std::isnan(float(back[i]))) && failures++ < 10)
      printf("bfloat16 %04x comes back as %04x\n", i, back[i].bits);
  const float between[] = {1.00390625f, 1.01171875f, 1.00391f, -1.00390625f};  // halfway twice, above it, halfway
  const uint16_t nearest[] = {0x3F80, 0x3F82, 0x3F81, 0xBF80};
  kernels.narrow(between, back.data(), 4);
  for (int i = 0; i < 4; i++)
    if (back[i].bits != nearest[i] && failures++ < 10) printf("%g goes to %04x\n", double(between[i]), back[i].bits);
  cases++;
}
