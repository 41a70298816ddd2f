// Convolutions in eight bits: sizes, strides, paddings and both orders of images, against 64-bit integers.

struct Int8Conv {
  int64_t images, channels;
  Int8Dimension down, across;
};

static void int8_convolution(const Int8Kernels& kernels, const Int8Case& w, const Int8Conv& v, bool planes, bool out_planes, bool given, bool added) {
  const Int8Convolution c(v.images, v.channels, v.down, v.across);
  const int64_t pixels = v.down.size * v.across.size, each = v.channels * pixels, lines = v.images * v.down.size;
  std::vector<float> x(v.images * each), scale(v.images), out(v.images * w.rows * c.pixels()), bias(w.rows);
  std::vector<int32_t> high(lines), zero(v.images);
  std::vector<uint32_t> low(lines);
  const std::unique_ptr<uint8_t[]> q(new uint8_t[c.bytes()]);  // as many as are allowed to be read: the sanitizer watches
  memset(q.get() + c.bytes() - WINDOW, 99, WINDOW);
  for (float& f : x) f = number() + 0.2f;
  for (float& f : bias) f = number();
  std::vector<float> add(added ? out.size() : 0);
  for (float& f : add) f = number();
  const float fixed_scale = 0.01f;
  const int32_t fixed_zero = 90;
  Int8Images m = c.quantise(x.data(), NUMBER_FLOAT, planes);
  if (given) m.x_scale = &fixed_scale, m.x_zero = &fixed_zero;
  m.high = high.data(), m.low = low.data(), m.scale = scale.data(), m.zero = zero.data(), m.q = q.get();
  kernels.image_extremes(m, 0, lines / 2), kernels.image_extremes(m, lines / 2, lines), kernels.image_ranges(m);
  kernels.image_rows(m, 0, c.rows() / 2), kernels.image_rows(m, c.rows() / 2, c.rows());
  const int64_t groups = v.images * ((v.channels + 15) / 16);
  if (planes) kernels.image_planes(m, 0, groups / 2), kernels.image_planes(m, groups / 2, groups);

  std::vector<uint8_t> bytes(x.size());  // an image is a token of the kernels' other pass
  std::vector<float> scales(v.images);
  std::vector<int32_t> zeros(v.images);
  const Int8Tokens t{x.data(), NUMBER_FLOAT, each, v.images, each, m.x_scale, m.x_zero, 0, bytes.data(), scales.data(), zeros.data()};
  kernels.quantize(t, 0, v.images);
  if (scales != scale || zeros != zero) wrong("range of images", kernels, w, v.images, scale[0], scales[0]);

  const Int8Patches patches = c.patches(q.get());
  Int8Product p{};
  p.a = w.a, p.patches = &patches, p.tokens = v.images * c.pixels(), p.x_scale = scale.data(), p.x_zero = zero.data();
  p.bias = bias.data(), p.out = out.data(), p.out_type = NUMBER_FLOAT, p.ldo = w.rows, p.plane = out_planes ? c.pixels() : 0;
  p.add = added ? add.data() : nullptr;
  run_in_two(kernels, p);
  for (int64_t n = 0; n < p.tokens; n++)
    for (int64_t r = 0; r < w.rows; r++) {
      const int64_t image = n / c.pixels(), pixel = n % c.pixels(), y0 = pixel / c.across.out(), x0 = pixel % c.across.out();
      int64_t sum = 0;
      for (int64_t j = 0; j < w.cols; j++) {
        const int64_t channel = j % v.channels, k = j / v.channels % v.across.kernel, i = j / v.channels / v.across.kernel;
        const int64_t y = y0 * v.down.stride + i * v.down.dilation - v.down.before, z = x0 * v.across.stride + k * v.across.dilation - v.across.before;
        if (y < 0 || y >= v.down.size || z < 0 || z >= v.across.size) continue;
        const int64_t at = planes ? channel * pixels + y * v.across.size + z : (y * v.across.size + z) * v.channels + channel;
        sum += int64_t(w.dense[r * w.cols + j]) * (int64_t(bytes[image * each + at]) - zero[image]);
      }
      const double exact = double(sum) * w.scale[r] * scale[image], other = added ? add[n * w.rows + r] : 0, want = exact + bias[r] + other;
      const double got = out[out_planes ? (image * w.rows + r) * c.pixels() + pixel : n * w.rows + r];
      if (!(std::fabs(got - want) <= 1e-6 * (std::fabs(exact) + std::fabs(bias[r]) + std::fabs(other) + std::fabs(want)))) wrong("convolution", kernels, w, n, got, want);
    }
  cases++;
}

static void all_int8_images(const Int8Kernels& kernels) {
  const Int8Conv shapes[] = {  // size, kernel, stride, dilation, padding before and after
      {1, 1, {1, 1, 1, 1, 0, 0}, {1, 1, 1, 1, 0, 0}},   {2, 3, {7, 3, 1, 1, 1, 1}, {7, 3, 1, 1, 1, 1}},
      {1, 17, {9, 3, 2, 1, 1, 1}, {13, 3, 2, 1, 1, 1}}, {3, 20, {6, 1, 1, 1, 0, 0}, {11, 1, 1, 1, 0, 0}},
      {1, 64, {9, 1, 2, 1, 0, 0}, {8, 1, 2, 1, 0, 0}},  {2, 2, {11, 2, 3, 2, 1, 3}, {13, 4, 1, 3, 4, 0}},
      {1, 3, {20, 7, 2, 1, 3, 3}, {40, 7, 2, 1, 3, 3}}, {2, 5, {1, 1, 1, 1, 0, 0}, {50, 5, 4, 2, 0, 9}},
      {1, 16, {40, 1, 1, 1, 0, 0}, {40, 1, 1, 1, 0, 0}},
  };
  for (const Int8Conv& v : shapes) {
    const int64_t cols = v.channels * v.down.kernel * v.across.kernel;
    std::vector<Int8Case> all;
    all.push_back(int8_dense(19, cols, int8_matrix(19, cols, 1, 1, 1))), all.push_back(int8_bitmap(33, cols, int8_matrix(33, cols, 1, 1, 3)));
    all.push_back(int8_lookup(35, cols, int8_matrix(35, cols, 1, 1, 3), 1, 40, 64, 3));
    all.push_back(int8_lookup(35, cols, int8_matrix(35, cols, 1, 1, 3), 1, 8, 16, 3));
    all.push_back(int8_lookup(70, cols, int8_matrix(70, cols, 4, 1, 3), 4, 32, 64, 4));
    all.push_back(int8_lines(20, cols, int8_matrix(20, cols, 1, 4, 3), 16, 5));
    for (const Int8Case& w : all)
      for (int bits = 0; bits < 8; bits++) {
        int8_convolution(kernels, w, v, bits & 1, bits & 2, bits & 4, false);
        if (!(bits & 2)) int8_convolution(kernels, w, v, bits & 1, false, bits & 4, true);
      }
  }
}
