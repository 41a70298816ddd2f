// int8 kernels: weights in their three forms, packed by plain loops; results against 64-bit integers.

struct Int8Case {
  int64_t rows = 0, cols = 0;
  std::vector<int8_t> dense;  // [rows, cols]
  std::vector<int8_t> values;
  std::vector<float> scale;
  std::vector<int32_t> sum, pos;
  std::vector<uint8_t> crd, line, row;
  Int8Weight a{};
};

static void finish(Int8Case& c) {
  Int8Weight& a = c.a;
  a.rows = c.rows, a.cols = c.cols;
  if (a.kind != INT8_DENSE) a.steps = c.pos.back();
  for (int64_t r = 0; r < c.rows; r++) {
    c.scale.push_back(0.001f * float(1 + r % 7)), c.sum.push_back(0);
    for (int64_t j = 0; j < c.cols; j++) c.sum[r] += c.dense[r * c.cols + j];
  }
  a.values = c.values.data(), a.scale = c.scale.data(), a.sum = c.sum.data();
  a.pos = c.pos.data(), a.crd = c.crd.data(), a.line = c.line.data(), a.row = c.row.data();
}

// tall x wide blocks, one in `one_in` kept.
static std::vector<int8_t> int8_matrix(int64_t rows, int64_t cols, int64_t tall, int64_t wide, unsigned one_in) {
  std::vector<int8_t> m(rows * cols);
  for (int64_t r = 0; r < rows; r += tall)
    for (int64_t j = 0; j < cols; j += wide)
      if (next() % one_in == 0)
        for (int64_t i = r; i < r + tall && i < rows; i++)
          for (int64_t k = j; k < j + wide && k < cols; k++) m[i * cols + k] = int8_t(int(next() % 255) - 127);
  return m;
}

static Int8Case int8_dense(int64_t rows, int64_t cols, std::vector<int8_t> dense) {
  Int8Case c;
  c.rows = rows, c.cols = cols, c.dense = dense, c.a.kind = INT8_DENSE;
  const int64_t quads = (cols + 3) / 4;
  for (int64_t g = 0; g < rows; g += GROUP)
    for (int64_t k = 0; k < quads; k++)
      for (int64_t r = g; r < g + GROUP; r++)
        for (int64_t j = 4 * k; j < 4 * k + 4; j++) c.values.push_back(r < rows && j < cols ? dense[r * cols + j] : int8_t(0));
  finish(c);
  return c;
}

static Int8Case int8_lookup(int64_t rows, int64_t cols, std::vector<int8_t> dense, int64_t tall, int64_t stride, int64_t window,
                            int64_t lines, int64_t wide = 1) {
  Int8Case c;
  c.rows = rows, c.cols = cols, c.dense = dense;
  Int8Weight& a = c.a;
  a.kind = INT8_LOOKUP, a.rows = rows, a.cols = cols, a.tall = tall, a.stride = stride, a.window = window, a.wide = wide;
  const int64_t windows = a.windows();
  const int64_t tiles = (windows + lines - 1) / lines;
  a.lines = (windows + tiles - 1) / tiles;
  struct Steps {
    std::vector<uint8_t> line, crd;
    std::vector<int8_t> values;
  };
  std::vector<std::vector<Steps>> made(a.units(), std::vector<Steps>(tiles));
  for (int64_t g = 0; g < a.units(); g++) {
    std::vector<std::vector<int64_t>> kept(GROUP);  // of each lane
    std::vector<int64_t> first(GROUP);
    for (int64_t l = 0; l < GROUP; l++) {
      const int64_t unit = tall == 4 ? 4 * (l % 4) + l / 4 : l;
      first[l] = (g * GROUP + unit) * tall;
      for (int64_t j = 0; j < cols; j += wide) {
        bool any = false;
        for (int64_t i = first[l]; i < first[l] + tall && i < rows; i++)
          for (int64_t e = j; e < j + wide && e < cols; e++) any |= dense[i * cols + e] != 0;
        if (any) kept[l].push_back(j);
      }
    }
    const int each = int(4 / wide);  // entries of a lane in a step
    std::vector<size_t> at(GROUP);
    for (int64_t w = 0; w < windows; w++) {
      const int64_t begin = w * stride, end = begin + window, must = w + 1 == windows ? cols : begin + stride;
      size_t steps = 0;
      for (int64_t l = 0; l < GROUP; l++) {
        size_t n = 0;
        while (at[l] + n < kept[l].size() && kept[l][at[l] + n] < must) n++;
        steps = std::max(steps, (n + each - 1) / each);
      }
      Steps& in = made[g][w / a.lines];
      for (size_t s = 0; s < steps; s++) {
        const size_t from = in.crd.size(), to = in.values.size();
        in.line.push_back(uint8_t(w % a.lines)), in.crd.resize(from + a.places(), 255), in.values.resize(to + WINDOW * tall);
        for (int64_t l = 0; l < GROUP; l++)
          for (int q = 0; q < each && at[l] < kept[l].size() && kept[l][at[l]] < end; q++, at[l]++) {
            const int64_t j = kept[l][at[l]];
            in.crd[from + each * l + q] = uint8_t((j - begin) / wide);
            for (int64_t i = 0; i < tall && first[l] + i < rows; i++)
              for (int64_t e = 0; e < wide && j + e < cols; e++)
                in.values[to + i * WINDOW + 4 * l + q + e] = dense[(first[l] + i) * cols + j + e];
          }
      }
    }
  }
  c.pos.push_back(0);
  const int64_t held = BLOCK / (GROUP * tall);
  for (int64_t b = 0; b < a.units(); b += held)
    for (int64_t k = 0; k < tiles; k++)
      for (int64_t g = b; g < b + held && g < a.units(); g++) {
        const Steps& in = made[g][k];
        c.line.insert(c.line.end(), in.line.begin(), in.line.end());
        c.crd.insert(c.crd.end(), in.crd.begin(), in.crd.end());
        c.values.insert(c.values.end(), in.values.begin(), in.values.end());
        c.pos.push_back(int32_t(c.line.size()));
      }
  finish(c);
  return c;
}

static Int8Case int8_lines(int64_t rows, int64_t cols, std::vector<int8_t> dense, int64_t block, int64_t lines) {
  Int8Case c;
  c.rows = rows, c.cols = cols, c.dense = dense;
  Int8Weight& a = c.a;
  a.kind = INT8_LINES, a.rows = rows, a.cols = cols, a.block = block;
  const int64_t quads = a.quads(), tiles = quads ? (quads + lines - 1) / lines : 1;
  a.lines = quads ? (quads + tiles - 1) / tiles : 1;
  c.pos.push_back(0);
  for (int64_t b = 0; b < rows; b += block)
    for (int64_t k = 0; k < tiles; k++) {
      std::vector<std::pair<std::vector<int64_t>, int64_t>> kept(block);  // columns of blocks, row
      for (int64_t i = 0; i < block; i++) {
        kept[i].second = i;
        for (int64_t j = k * a.lines; j < (k + 1) * a.lines && j < quads; j++) {
          bool any = false;
          for (int64_t e = 4 * j; e < 4 * j + 4 && e < cols; e++) any |= b + i < rows && dense[(b + i) * cols + e] != 0;
          if (any) kept[i].first.push_back(j);
        }
      }
      std::stable_sort(kept.begin(), kept.end(), [](const auto& l, const auto& r) { return l.first.size() > r.first.size(); });
      for (int64_t u = 0; u < block; u += 4) {
        for (int64_t r = u; r < u + 4; r++) c.row.push_back(uint8_t(kept[r].second));
        for (size_t s = 0; s < kept[u].first.size(); s++)
          for (int64_t r = u; r < u + 4; r++) {
            const bool used = s < kept[r].first.size();
            c.crd.push_back(uint8_t(used ? kept[r].first[s] - k * a.lines : a.lines));
            for (int64_t e = 0; e < 4; e++) {
              const int64_t j = used ? 4 * kept[r].first[s] + e : cols;
              c.values.push_back(j < cols ? dense[(b + kept[r].second) * cols + j] : int8_t(0));
            }
          }
        c.pos.push_back(int32_t(c.crd.size() / 4));
      }
    }
  finish(c);
  return c;
}

// The outputs of a product from its own bytes, in 64-bit integers, then double precision.
static void int8_product(const Int8Kernels& kernels, const Int8Case& c, int64_t tokens) {
  const int64_t cols = c.cols, activation = cases % 4;
  const std::unique_ptr<float[]> x(new float[tokens * cols]), out(new float[tokens * c.rows]), bias(new float[c.rows]);
  for (int64_t i = 0; i < tokens * cols; i++) x[i] = number() + 0.3f;
  for (int64_t i = 0; i < c.rows; i++) bias[i] = number();
  std::vector<uint8_t> q(tokens * cols);
  std::vector<float> scale(tokens);
  std::vector<int32_t> zero(tokens);
  const Int8Tokens t{x.get(), NUMBER_FLOAT, cols, tokens, cols, nullptr, nullptr, 0, q.data(), scale.data(), zero.data()};
  kernels.quantize(t, 0, tokens);
  Int8Product p{};
  p.a = c.a, p.x = x.get(), p.x_type = NUMBER_FLOAT, p.ldx = cols, p.tokens = tokens, p.bias = bias.get(), p.activation = activation;
  p.out = out.get(), p.out_type = NUMBER_FLOAT, p.ldo = c.rows;
  const int64_t items = kernels.items(p), half = items / 2;
  kernels.product(p, 0, half), kernels.product(p, half, items);
  for (int64_t n = 0; n < tokens; n++)
    for (int64_t r = 0; r < c.rows; r++) {
      int64_t sum = 0;
      for (int64_t j = 0; j < cols; j++) sum += int64_t(c.dense[r * cols + j]) * (int64_t(q[n * cols + j]) - zero[n]);
      const double exact = double(sum) * c.scale[r] * scale[n], want = activated(exact + bias[r], activation);
      const double got = out[n * c.rows + r], size = std::fabs(exact) + std::fabs(bias[r]) + std::fabs(exact + bias[r]);
      if (!(std::fabs(got - want) <= 1e-6 * size) && failures++ < 10)
        printf("int8 %s kind %ld %ldx%ld token %ld of %ld row %ld: %g, must be %g\n", kernels.name, long(c.a.kind), long(c.rows), long(cols),
               long(n), long(tokens), long(r), got, want);
    }
  for (int64_t i = 0; i < tokens * cols; i++)
    if (std::fabs(double(scale[i / cols]) * (q[i] - zero[i / cols]) - x[i]) > 0.5001 * scale[i / cols] && failures++ < 10)
      printf("int8 %s quantize: %g became %d of scale %g, zero %d\n", kernels.name, x[i], q[i], scale[i / cols], zero[i / cols]);
  cases++;
}
