// Packed tiles: results against plain loops in double precision, with arrays that end where they must.

struct TileCase {
  int64_t rows = 0, cols = 0;
  std::vector<float> dense;
  std::vector<int32_t> pos;
  std::vector<uint32_t> bits;
  std::vector<Bf16> values;
};

static Bf16 half(float v) {
  Bf16 made;
  kernels_baseline.narrow(&v, &made, 1);
  return made;
}

static TileCase tiles_of(int64_t rows, int64_t cols, unsigned one_in) {
  TileCase c;
  c.rows = rows, c.cols = cols, c.dense.assign(rows * cols, 0.0f);
  for (float& v : c.dense)
    if (next() % one_in == 0) v = half(number());
  c.pos.push_back(0);
  for (int64_t g = 0; g < rows; g += 16) {
    for (int64_t k = 0; k < cols; k += 2) {
      uint32_t kept = 0;
      for (int64_t i = 0; i < 32; i++) {
        const int64_t r = g + i / 2, j = k + i % 2;
        if (r < rows && j < cols && c.dense[r * cols + j] != 0.0f) kept |= 1u << i, c.values.push_back(half(c.dense[r * cols + j]));
      }
      c.bits.push_back(kept);
    }
    c.pos.push_back(int32_t(c.values.size()));
  }
  return c;
}

static void tiles_product(const TileKernels& kernels, const TileCase& c, int64_t tokens, bool infinite) {
  const int64_t ldx = c.cols + 3, last = tokens - 1, column = c.cols / 2, size = tokens ? last * ldx + c.cols : 0;
  const std::unique_ptr<Bf16[]> x(new Bf16[size]), out(new Bf16[tokens * c.rows]);
  const std::unique_ptr<float[]> bias(new float[c.rows]);
  const std::unique_ptr<Bf16[]> values(new Bf16[c.values.size()]);
  if (!c.values.empty()) memcpy((void*)values.get(), c.values.data(), c.values.size() * sizeof(Bf16));
  for (int64_t i = 0; i < size; i++) x[i] = half(number());
  if (infinite && tokens && c.cols) x[last * ldx + column] = half(INFINITY);
  for (int64_t i = 0; i < c.rows; i++) bias[i] = number();
  const int64_t activation = infinite ? int64_t(NONE) : cases % 4;
  const TileProduct p{{c.rows, c.cols, c.pos.data(), c.bits.data(), values.get()}, x.get(), ldx, tokens, bias.get(), activation, out.get(), c.rows};
  const int64_t items = tokens && c.rows ? kernels.items(p) : 0, middle = items / 2;
  kernels.product(p, 0, middle), kernels.product(p, middle, items);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t r = 0; r < c.rows; r++) {
      const double got = float(out[t * c.rows + r]);
      if (infinite && t == last && c.cols && c.dense[r * c.cols + column] != 0.0f) {
        if (std::isfinite(got) && failures++ < 10) printf("tiles %s: an infinity is lost\n", kernels.name);
        continue;
      }
      double sum = bias[r], sizes = std::fabs(bias[r]);
      for (int64_t j = 0; j < c.cols; j++) {
        if (c.dense[r * c.cols + j] == 0.0f) continue;
        const double term = double(float(x[t * ldx + j])) * c.dense[r * c.cols + j];
        sum += term, sizes += std::fabs(term);
      }
      const double want = activated(sum, activation);
      const double room = (c.cols + 4) * 6e-8 * sizes + std::fabs(want) / 256 + 1e-37;
      if (!(std::fabs(got - want) <= room) && failures++ < 10)
        printf("tiles %s %ldx%ld tokens %ld: %g, must be %g\n", kernels.name, long(c.rows), long(c.cols), long(tokens), got, want);
    }
  cases++;
}

static void all_tiles(const TileKernels& kernels) {
  std::vector<TileCase> all;
  all.push_back(tiles_of(1, 1, 1));
  all.push_back(tiles_of(16, 32, 2));
  all.push_back(tiles_of(50, 131, 3));
  all.push_back(tiles_of(33, 31, 1));
  all.push_back(tiles_of(81, 66, 10));
  all.push_back(tiles_of(20, 70, 1000000));
  all.push_back(tiles_of(0, 7, 2));
  all.push_back(tiles_of(7, 0, 2));
  for (const TileCase& c : all)
    for (int64_t tokens : {0, 1, 2, 3, 4, 5, 12, 15, 16, 17, 29, 31, 32, 33, 47, 48, 49, 65, 500})
      tiles_product(kernels, c, tokens, false), tiles_product(kernels, c, tokens, true);
}
