// Convolutions: every way to be padded, strided and dilated, against loops that know nothing of panels.

struct Conv {
  int64_t images, channels, height, width, kernel[2], stride[2], dilation[2], pad[4];  // left, right, top, bottom
};

static double at_pixel(const Conv& v, const float* x, const Case& c, int64_t image, int64_t row, int64_t y0, int64_t x0, double* size) {
  double sum = 0;
  for (int64_t j = 0; j < c.cols; j++) {
    const int64_t channel = j / (v.kernel[0] * v.kernel[1]), i = j / v.kernel[1] % v.kernel[0], k = j % v.kernel[1];
    const int64_t py = y0 * v.stride[0] + i * v.dilation[0] - v.pad[2], px = x0 * v.stride[1] + k * v.dilation[1] - v.pad[0];
    if (py < 0 || py >= v.height || px < 0 || px >= v.width) continue;
    const float weight = c.dense[row * c.cols + j];
    if (weight == 0.0f) continue;
    const double term = double(x[((image * v.channels + channel) * v.height + py) * v.width + px]) * weight;
    sum += term, *size += std::fabs(term);
  }
  return sum;
}

// `place`: a pixel that is infinite, or -1. It reaches the rows that keep something there, and no other.
static void convolution(const Kernels& kernels, const Case& c, const Conv& v, bool wide, int64_t place) {
  const Dimension down(v.height, v.kernel[0], v.stride[0], v.dilation[0], v.pad[2], v.pad[3]);
  const Dimension across(v.width, v.kernel[1], v.stride[1], v.dilation[1], v.pad[0], v.pad[1]);
  const int64_t planes = v.images * v.channels, copied = down.places() * across.places(), pixels = down.out * across.out;
  const std::unique_ptr<float[]> x(new float[planes * v.height * v.width]), copy(new float[planes * copied]);
  const std::unique_ptr<float[]> out(new float[v.images * c.rows * pixels]), bias(new float[c.rows]);
  for (int64_t i = 0; i < planes * v.height * v.width; i++) x[i] = i == place ? INFINITY : number();
  for (int64_t i = 0; i < c.rows; i++) bias[i] = number();
  const bool copies = !down.as_it_is || !across.as_it_is;
  const Padding padding{x.get(), copy.get(), &down.axis, &across.axis};
  if (copies) kernels.pad(padding, 0, planes / 2), kernels.pad(padding, planes / 2, planes);
  const std::vector<int64_t> columns = columns_of(v.channels, down, across);
  const Image image = image_of(copies ? copy.get() : x.get(), v.channels, down, across, columns);
  Product p{c.a, nullptr, 0, v.images * pixels, bias.get(), RELU, out.get(), 0, wide, &image};
  const int64_t items = kernels.items(p), half = items / 2;
  kernels.product(p, 0, half), kernels.product(p, half, items);
  for (int64_t n = 0; n < v.images; n++)
    for (int64_t r = 0; r < c.rows; r++)
      for (int64_t i = 0; i < pixels; i++) {
        double size = std::fabs(bias[r]);
        const double sum = bias[r] + at_pixel(v, x.get(), c, n, r, i / across.out, i % across.out, &size);
        const float got = out[(n * c.rows + r) * pixels + i];
        if (std::isfinite(sum)) expect(got, sum < 0 ? 0 : sum, size + std::fabs(sum), "convolution", c, pixels);
        else if (got != activated(sum, RELU) && failures++ < 10) printf("infinite convolution: %g, must be %g\n", got, sum);
      }
  cases++;
}

static void all_images(const Kernels& kernels) {
  const Conv shapes[] = {
      {1, 2, 1, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},  {2, 3, 7, 7, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {1, 3, 19, 37, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}}, {3, 5, 6, 11, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {1, 5, 9, 8, {1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}},  {2, 2, 11, 13, {2, 4}, {3, 1}, {2, 3}, {4, 0, 1, 3}},
      {1, 3, 20, 40, {7, 7}, {2, 2}, {1, 1}, {3, 3, 3, 3}}, {1, 4, 5, 70, {1, 5}, {1, 4}, {1, 2}, {0, 9, 0, 0}},
      {2, 4, 8, 8, {3, 1}, {1, 1}, {2, 1}, {0, 0, 0, 0}},  {1, 1, 1, 90, {1, 3}, {1, 3}, {1, 1}, {1, 1, 0, 0}},
  };
  for (const Conv& v : shapes) {
    const int64_t cols = v.channels * v.kernel[0] * v.kernel[1];
    const Case any = any_pattern(20, cols, 32, 7, 3);
    std::vector<Case> all;
    all.push_back(near(any)), all.push_back(regular(kernels.lanes, 19, cols, 32, 12, 6)), all.push_back(regular(kernels.lanes, 33, cols, 48, 20, 1));
    all.push_back(any_pattern(33, cols, 48, 128, 4));
    for (const Case& c : all)
      for (const bool wide : {false, true}) convolution(kernels, c, v, wide, -1), convolution(kernels, c, v, wide, v.height * v.width / 2);
  }
}
