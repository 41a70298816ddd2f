// Images in eight bits for convolutions: quantised once, with their padding; then patches of pixels, set by set.
//
// Floor: of quantising that of int8_quantize.h. A patch is copied 64 bytes at a time, a load and a store each; a run that
// is no multiple of 64 bytes writes beyond its end, where the next run follows, or the padding of the row.

typedef uint8_t Line __attribute__((vector_size(WINDOW)));

template <int OFF> INLINE void copy_line(const uint8_t* from, uint8_t* to) {
  Line v;
  memcpy(&v, from, sizeof v);
  if (OFF) v -= uint8_t(OFF);
  memcpy(to, &v, sizeof v);
}

// Patches of tokens [first, first + count) to rows of bytes, `pitch` apart; scales, and zeros less OFF.
template <int OFF>
static void gather_patches(const Int8Product& p, int64_t first, int64_t count, uint8_t* to, int64_t pitch, float* scale, int32_t* zero) {
  const Int8Patches& m = *p.patches;
  const int64_t pixels = m.height * m.width;
  for (int64_t t = 0; t < count; t++, to += pitch) {
    const int64_t image = (first + t) / pixels, pixel = (first + t) % pixels;
    const uint8_t* patch = m.data + image * m.image + pixel / m.width * m.line + pixel % m.width * m.step;
    for (int64_t i = 0; i < m.runs; i++)
      for (int64_t c = 0; c < m.run; c += WINDOW) copy_line<OFF>(patch + m.start[i] + c, to + i * m.run + c);
    scale[t] = p.x_scale[image], zero[t] = p.x_zero[image] - OFF;
  }
}

// Calls use(x) with the activations from `first` on, in their type.
template <class F> static void with_values(const Int8Images& p, int64_t first, const F& use) {
  if (p.x_type == NUMBER_FLOAT) use((const float*)p.x + first);
  else use((const Bf16*)p.x + first);
}

template <class X> static void quantize_run(const Int8Images& p, int64_t image, const X* x, int64_t count, uint8_t* to, int64_t padded) {
  const float scale = p.scale[image] == p.scale[image] ? p.scale[image] : 1.0f;  // NaN: outputs are NaN whatever q is
  if (p.x_scale) quantize_row<true, 0>(x, count, scale, p.zero[image], to, padded);
  else quantize_row<false, 0>(x, count, scale, p.zero[image], to, padded);
}

// Of as many values as a row of pixels has, which need not be one.
static void image_extremes(const Int8Images& p, int64_t begin, int64_t end) {
  const int64_t length = p.width * p.channels;
  for (int64_t row = begin; row < end; row++)
    with_values(p, row * length, [&](const auto* x) { extremes(x, length, p.high[row], p.low[row]); });
}

static void image_ranges(const Int8Images& p) {
  for (int64_t i = 0; i < p.images; i++) {
    Ranges r;
    for (int64_t row = i * p.height; row < (i + 1) * p.height; row++) {
      r.high[0] = p.high[row] > r.high[0] ? p.high[row] : r.high[0];
      r.low[0] = p.low[row] > r.low[0] ? p.low[row] : r.low[0];
    }
    if (p.x_scale) r.scale[0] = *p.x_scale, r.zero[0] = *p.x_zero;
    else r.choose();
    p.scale[i] = finite(r.high[0], r.low[0]) ? r.scale[0] : __builtin_nanf(""), p.zero[i] = r.zero[0];
  }
}

// Bytes, at most LEVELS, and padding behind them.
static void copy_bytes(const uint8_t* x, int64_t count, int32_t zero, uint8_t* to, int64_t padding) {
  for (int64_t c = 0; c < count; c++) to[c] = x[c] > LEVELS ? LEVELS : x[c];
  memset(to + count, zero, padding);
}

static void image_rows(const Int8Images& p, int64_t begin, int64_t end) {
  const int64_t tall = p.top + p.height + p.bottom, left = p.left * p.channels, right = p.right * p.channels;
  const int64_t length = p.width * p.channels, whole = left + length + right;
  for (int64_t row = begin; row < end; row++) {
    const int64_t i = row / tall, y = row % tall - p.top;
    uint8_t* to = p.q + row * whole;
    if (y < 0 || y >= p.height) {
      memset(to, p.zero[i], whole);
      continue;
    }
    memset(to, p.zero[i], left);
    if (p.planes) memset(to + left + length, p.zero[i], right);
    else if (p.x_type == NUMBER_UINT8) copy_bytes((const uint8_t*)p.x + (i * p.height + y) * length, length, p.zero[i], to + left, right);
    else with_values(p, (i * p.height + y) * length, [&](const auto* x) { quantize_run(p, i, x, length, to + left, length + right); });
  }
}

// Sixteen rows of sixteen bytes, transposed: interleaving row i with row i + 8 four times.
typedef uint8_t Sixteenth __attribute__((vector_size(16)));
#if defined(__clang__)
#define PAIRS(p, q, L) __builtin_shufflevector(p, q, L, L + 16, L + 1, L + 17, L + 2, L + 18, L + 3, L + 19, L + 4, L + 20, L + 5, L + 21, L + 6, L + 22, L + 7, L + 23)
#else
#define PAIRS(p, q, L) __builtin_shuffle(p, q, Sixteenth{L, L + 16, L + 1, L + 17, L + 2, L + 18, L + 3, L + 19, L + 4, L + 20, L + 5, L + 21, L + 6, L + 22, L + 7, L + 23})
#endif
INLINE void transpose_bytes(Sixteenth (&a)[16]) {
#pragma GCC unroll 4
  for (int step = 0; step < 4; step++) {
    Sixteenth b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) b[2 * i] = PAIRS(a[i], a[i + 8], 0), b[2 * i + 1] = PAIRS(a[i], a[i + 8], 8);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = b[i];
  }
}

// Sixteen channels of [channels, height, width] to their place in [height, width, channels], some pixels at a time.
static void image_planes(const Int8Images& p, int64_t begin, int64_t end) {
  constexpr int64_t SOME = 1024;
  const int64_t groups = (p.channels + 15) / 16, pixels = p.height * p.width;
  const int64_t line = (p.left + p.width + p.right) * p.channels, image = (p.top + p.height + p.bottom) * line;
  alignas(64) uint8_t room[16][SOME];
  for (int64_t item = begin; item < end; item++) {
    const int64_t i = item / groups, first = item % groups * 16, count = p.channels - first < 16 ? p.channels - first : 16;
    uint8_t* to = p.q + i * image + p.top * line + p.left * p.channels + first;
    for (int64_t from = 0; from < pixels; from += SOME) {
      const int64_t some = pixels - from < SOME ? pixels - from : SOME;
      for (int64_t c = 0; c < count; c++)
        with_values(p, (i * p.channels + first + c) * pixels + from, [&](const auto* x) { quantize_run(p, i, x, some, room[c], some); });
      int64_t y = from / p.width, x = from % p.width;
      for (int64_t at = 0; at < some; at += 16) {
        Sixteenth a[16];
        for (int c = 0; c < 16; c++) memcpy(&a[c], room[c] + at, 16);
        transpose_bytes(a);
        for (int64_t k = 0; k < 16 && at + k < some; k++) {
          uint8_t* pixel = to + y * line + x * p.channels;
          if (count == 16) memcpy(pixel, &a[k], 16);
          else memcpy(pixel, &a[k], count);
          if (++x == p.width) x = 0, y++;
        }
      }
    }
  }
}
