// int8 kernels: weights in their four forms, packed by plain loops; results against 64-bit integers.

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

static Int8Case int8_bitmap(int64_t rows, int64_t cols, std::vector<int8_t> dense) {
  Int8Case c;
  c.rows = rows, c.cols = cols, c.dense = dense, c.a.kind = INT8_BITMAP;
  c.pos.push_back(0);
  for (int64_t g = 0; g < rows; g += GROUP) {
    for (int64_t k = 0; k < (cols + 3) / 4; k++) {
      uint64_t bits = 0;
      for (int64_t i = 0; i < 64; i++) {
        const int64_t r = g + i / 4, j = 4 * k + i % 4;
        if (r < rows && j < cols && dense[r * cols + j]) bits |= uint64_t(1) << i, c.values.push_back(dense[r * cols + j]);
      }
      for (int i = 0; i < 8; i++) c.crd.push_back(uint8_t(bits >> 8 * i));
    }
    c.pos.push_back(int32_t(c.values.size()));
  }
  c.values.resize(c.values.size() + 64, 77);  // may be read, and must not count
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

// x in eight bits by the kernels' own pass, and what a product of it must be, in 64-bit integers and double precision.
struct Int8Inputs {
  int64_t tokens, cols;
  std::vector<float> x, scale, bias;
  std::vector<uint8_t> q;
  std::vector<int32_t> zero;

  Int8Inputs(const Int8Kernels& kernels, const Int8Case& c, int64_t n) : tokens(n), cols(c.cols), x(n * c.cols), scale(n), bias(c.rows), q(n * c.cols), zero(n) {
    for (float& v : x) v = number() + 0.3f;
    for (float& v : bias) v = number();
    const Int8Tokens t{x.data(), NUMBER_FLOAT, cols, tokens, cols, nullptr, nullptr, 0, q.data(), scale.data(), zero.data()};
    kernels.quantize(t, 0, tokens / 2), kernels.quantize(t, tokens / 2, tokens);
  }

  // Without bias and activation, and how large a number it was rounded with.
  double exact(const Int8Case& c, int64_t n, int64_t r) const {
    int64_t sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += int64_t(c.dense[r * cols + j]) * (int64_t(q[n * cols + j]) - zero[n]);
    return double(sum) * c.scale[r] * scale[n];
  }

  Int8Product product(const Int8Case& c, void* out, int64_t type) const {
    Int8Product p{};
    p.a = c.a, p.x = x.data(), p.x_type = NUMBER_FLOAT, p.ldx = cols, p.tokens = tokens, p.bias = bias.data();
    p.out = out, p.out_type = type, p.ldo = c.rows;
    return p;
  }
};

static void wrong(const char* what, const Int8Kernels& kernels, const Int8Case& c, int64_t tokens, double got, double want) {
  if (failures++ < 10)
    printf("int8 %s %s kind %ld %ldx%ld tall %ld wide %ld window %ld, %ld tokens: %g, must be %g\n", what, kernels.name, long(c.a.kind),
           long(c.rows), long(c.cols), long(c.a.tall), long(c.a.wide), long(c.a.window), long(tokens), got, want);
}

static bool run_in_two(const Int8Kernels& kernels, const Int8Product& p) {
  const int64_t items = kernels.items(p), half = items / 2;
  const bool one = kernels.product(p, 0, half);
  return kernels.product(p, half, items) && one;
}

static void int8_product(const Int8Kernels& kernels, const Int8Case& c, int64_t tokens) {
  const Int8Inputs in(kernels, c, tokens);
  std::vector<float> out(tokens * c.rows), whole(out);
  Int8Product p = in.product(c, out.data(), NUMBER_FLOAT);
  p.activation = cases % 4;
  run_in_two(kernels, p);
  for (int64_t n = 0; n < tokens; n++)
    for (int64_t r = 0; r < c.rows; r++) {
      const double exact = in.exact(c, n, r), want = activated(exact + in.bias[r], p.activation), got = out[n * c.rows + r];
      const double size = std::fabs(exact) + std::fabs(in.bias[r]) + std::fabs(exact + in.bias[r]);
      if (!(std::fabs(got - want) <= 1e-6 * size)) wrong("product", kernels, c, tokens, got, want);
    }
  p.out = whole.data();
  kernels.product(p, 0, kernels.items(p));
  if (memcmp(out.data(), whole.data(), out.size() * 4)) wrong("in one part", kernels, c, tokens, 0, 0);
  for (size_t i = 0; i < in.x.size(); i++) {
    const float scale = in.scale[i / c.cols];
    const double back = double(scale) * (in.q[i] - in.zero[i / c.cols]);
    if (std::fabs(back - in.x[i]) > 0.5001 * scale || in.q[i] > 254) wrong("quantize", kernels, c, tokens, back, in.x[i]);
  }
  cases++;
}

// Bytes that come in give what the floats gave, bit by bit; bfloat16 and bytes that go out are the rounded floats.
static void int8_types(const Int8Kernels& kernels, const Int8Case& c, int64_t tokens) {
  const Int8Inputs in(kernels, c, tokens);
  const size_t size = size_t(tokens * c.rows);
  std::vector<float> floats(size), again(size);
  std::vector<Bf16> halves(size), want(size);
  std::vector<uint8_t> bytes(size), other(size);
  Int8Product p = in.product(c, floats.data(), NUMBER_FLOAT);
  run_in_two(kernels, p);
  p.x = in.q.data(), p.x_type = NUMBER_UINT8, p.x_scale = in.scale.data(), p.x_zero = in.zero.data(), p.x_each = 1;
  p.out = again.data(), run_in_two(kernels, p);
  if (memcmp(floats.data(), again.data(), size * 4)) wrong("from bytes", kernels, c, tokens, 0, 0);
  p.out = halves.data(), p.out_type = NUMBER_BF16, run_in_two(kernels, p);
  gossamer::kernels().narrow(floats.data(), want.data(), int64_t(size));
  if (memcmp(halves.data(), want.data(), size * 2)) wrong("to bfloat16", kernels, c, tokens, 0, 0);
  p.out = bytes.data(), p.out_type = NUMBER_UINT8, p.out_scale = 0.01f, p.out_zero = 100;
  if (!run_in_two(kernels, p)) wrong("finite", kernels, c, tokens, 0, 1);
  for (size_t i = 0; i < size; i++) {
    const double level = double(floats[i]) / p.out_scale + p.out_zero, near = level < 0 ? 0 : level > 254 ? 254 : level;
    if (std::fabs(bytes[i] - near) > 0.5001) wrong("to bytes", kernels, c, tokens, bytes[i], near);
  }
  std::vector<Bf16> x(in.x.size());  // bfloat16 that comes in is the float that it stands for
  std::vector<float> wide(in.x.size());
  gossamer::kernels().narrow(in.x.data(), x.data(), int64_t(x.size())), gossamer::kernels().widen(x.data(), wide.data(), int64_t(x.size()));
  p = in.product(c, floats.data(), NUMBER_FLOAT), p.x = wide.data(), run_in_two(kernels, p);
  p.x = x.data(), p.x_type = NUMBER_BF16, p.out = again.data(), run_in_two(kernels, p);
  if (memcmp(floats.data(), again.data(), size * 4)) wrong("from bfloat16", kernels, c, tokens, 0, 0);
  cases++;
}

// A value that is not finite makes its token NaN and no other; a token of zeros gives the bias; tiny ones stay in bounds.
static void int8_bad(const Int8Kernels& kernels, const Int8Case& c, int64_t tokens) {
  const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
  Int8Inputs in(kernels, c, tokens);
  std::vector<float> out(tokens * c.rows);
  for (int64_t n = 0; n < tokens; n++)
    for (int64_t j = 0; j < c.cols; j++) in.x[n * c.cols + j] = n % 3 == 1 ? 0.0f : n % 3 == 2 ? 1e-42f : 1.0f;
  in.x[(tokens - 1) / 3 * 3 * c.cols + c.cols / 2] = bad[cases % 4];
  Int8Product p = in.product(c, out.data(), NUMBER_FLOAT);
  run_in_two(kernels, p);
  for (int64_t n = 0; n < tokens; n++)
    for (int64_t r = 0; r < c.rows; r++) {
      const float got = out[n * c.rows + r];
      const bool nan = n == (tokens - 1) / 3 * 3;
      if (nan ? got == got : n % 3 && !(std::fabs(got - in.bias[r]) <= (n % 3 == 1 ? 0 : 1e-30))) wrong("bad input", kernels, c, tokens, got, in.bias[r]);
    }
  std::vector<uint8_t> bytes(out.size());
  p.out = bytes.data(), p.out_type = NUMBER_UINT8, p.out_scale = 1.0f, p.out_zero = 0;
  if (run_in_two(kernels, p)) wrong("bytes of NaN", kernels, c, tokens, 1, 0);
  cases++;
}

// Levels at their edges: values far outside of a range that is given, and sums as large as they can be.
static void int8_edges(const Int8Kernels& kernels) {
  const float x[] = {-3e38f, -1000.0f, -1.26f, -1.25f, 0.0f, 0.5f, 0.24999f, 1.5f, 251.0f, 252.74f, 252.76f, 1000.0f, 3e38f, 2147483648.0f};
  const uint8_t want[] = {0, 0, 0, 0, 1, 2, 1, 2, 252, 254, 254, 254, 254, 254};  // zero 1; ties to even: 0.5 and 1.5
  uint8_t q[14], one_q[28];
  float scale = 1.0f, scales[2];
  int32_t zero = 1, zeros[2];
  const Int8Tokens t{x, NUMBER_FLOAT, 14, 1, 14, &scale, &zero, 0, q, scales, zeros};
  kernels.quantize(t, 0, 1);
  for (int i = 0; i < 14; i++) {
    const uint8_t exact = x[i] == 0.5f ? 1 : x[i] == 1.5f ? 3 : want[i];
    if (q[i] != exact && failures++ < 10) printf("int8 edges %s: %g became %d, must be %d\n", kernels.name, x[i], q[i], exact);
  }
  const float wide[] = {-3e38f, 3e38f, 1e38f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};  // a range that is no float32
  const Int8Tokens w{wide, NUMBER_FLOAT, 14, 1, 14, nullptr, nullptr, 0, one_q, scales, zeros};
  kernels.quantize(w, 0, 1);
  if ((one_q[0] != 0 || one_q[1] != 254 || one_q[2] != 169 || one_q[3] != 127 || !(scales[0] < 1e38f)) && failures++ < 10)
    printf("int8 edges %s: wide range %d %d %d %d\n", kernels.name, one_q[0], one_q[1], one_q[2], one_q[3]);
  Int8Case c = int8_dense(16, MOST_COLS, std::vector<int8_t>(16 * MOST_COLS, 127));
  std::vector<uint8_t> bytes(MOST_COLS, 255);  // more than 254 is taken for 254
  std::vector<float> out(16);
  Int8Product p{};
  p.a = c.a, p.x = bytes.data(), p.x_type = NUMBER_UINT8, p.ldx = MOST_COLS, p.tokens = 1, p.x_scale = &scale, p.x_zero = &zero;
  p.out = out.data(), p.ldo = 16;
  for (int32_t low : {0, 254}) {
    zero = low, kernels.product(p, 0, kernels.items(p));
    const double most = double(254 - low) * 127 * MOST_COLS * c.scale[3];
    if (std::fabs(out[3] - most) > 1e-6 * most && failures++ < 10) printf("int8 edges %s: %g, must be %g\n", kernels.name, out[3], most);
  }
  cases += 4;
}

static void all_int8(const Int8Kernels& kernels) {
  std::vector<Int8Case> all;
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {16, 64}, {50, 131}, {65, 300}}) {
    all.push_back(int8_dense(rows, cols, int8_matrix(rows, cols, 1, 1, 1)));
    for (unsigned one_in : {1u, 2u, 9u}) all.push_back(int8_bitmap(rows, cols, int8_matrix(rows, cols, 1, 1, one_in)));
    for (const auto& [stride, window] : std::vector<std::pair<int64_t, int64_t>>{{16, 64}, {40, 64}, {64, 64}, {8, 16}, {20, 32}})
      all.push_back(int8_lookup(rows, cols, int8_matrix(rows, cols, 1, 1, 3), 1, stride, window, 3));
    for (int64_t window : {16, 64})
      all.push_back(int8_lookup(rows, cols, int8_matrix(rows, cols, 4, 1, 3), 4, window / 2, window, 4));
    for (int64_t tall : {1, 4}) all.push_back(int8_lookup(rows, cols, int8_matrix(rows, cols, tall, 4, 3), tall, 16, 64, 3, 4));
    all.push_back(int8_lines(rows, cols, int8_matrix(rows, cols, 1, 4, 3), 32, 20));
  }
  all.push_back(int8_lookup(800, 70, int8_matrix(800, 70, 1, 1, 9), 1, 2, 64, 2));  // two blocks of rows, two tiles
  all.push_back(int8_lookup(20, 70, std::vector<int8_t>(20 * 70), 1, 32, 64, 24));  // nothing is kept
  all.push_back(int8_lines(20, 70, std::vector<int8_t>(20 * 70), 32, 192));
  all.push_back(int8_bitmap(20, 70, std::vector<int8_t>(20 * 70)));
  all.push_back(int8_dense(80, 192, int8_matrix(80, 192, 1, 1, 1)));  // whole tiles of AMX
  all.push_back(int8_bitmap(112, 128, int8_matrix(112, 128, 1, 1, 2)));
  for (const Int8Case& c : all)
    for (int64_t tokens : {1, 2, 3, 5, 7, 9, 16, 17, 25, 33, 50, 161}) {
      int8_product(kernels, c, tokens);
      if (tokens % 8 == 1) int8_types(kernels, c, tokens), int8_bad(kernels, c, tokens);
    }
  int8_edges(kernels);
}
