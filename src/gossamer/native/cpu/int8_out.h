// From sums to outputs: scales, bias, activation; to float32, bfloat16 or bytes for a following int8 layer.
//
// Floor, sixteen outputs: 32-bit multiply, subtract, convert, multiply, multiply-add, store; two broadcasts.

constexpr int PARTS = GROUP / WIDTH;  // vectors of sixteen values

// Constants of sixteen rows; what is behind the last row is 0.
struct RowsOut {
  Vec<WIDTH> scale[PARTS], bias[PARTS];
  Ints<WIDTH> sum[PARTS];
  int64_t row, count;

  INLINE_MEMBER RowsOut(const Int8Product& p, int64_t first) : row(first), count(p.a.rows - first) {
    if (count >= GROUP) {
      count = GROUP;
      take(p.a.scale + row, p.a.sum + row, p.bias ? p.bias + row : nullptr);
      return;
    }
    float s[GROUP] = {}, b[GROUP] = {};
    int32_t n[GROUP] = {};
    memcpy(s, p.a.scale + row, count * 4), memcpy(n, p.a.sum + row, count * 4);
    if (p.bias) memcpy(b, p.bias + row, count * 4);
    take(s, n, b);
  }

 private:
  INLINE_MEMBER void take(const float* s, const int32_t* n, const float* b) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) {
      scale[i] = load<WIDTH>(s + i * WIDTH), bias[i] = b ? load<WIDTH>(b + i * WIDTH) : Vec<WIDTH>{};
      sum[i] = load_ints(n + i * WIDTH);
    }
  }
};

// What sixteen sums of one token stand for.
INLINE void scaled(const RowsOut& r, Sums sums, float x_scale, int32_t zero, Vec<WIDTH> (&v)[PARTS]) {
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++) {
    const Ints<WIDTH> s = part_of(sums, i) - zero * r.sum[i];
    v[i] = __builtin_convertvector(s, Vec<WIDTH>) * r.scale[i] * x_scale + r.bias[i];
  }
}

// And what is added to them.
INLINE void add_given(const Int8Product& p, const RowsOut& r, int64_t token, Vec<WIDTH> (&v)[PARTS]) {
  if (!p.add) return;
  const float* add = p.add + token * p.ldo + r.row;
  float some[GROUP] = {};
  if (r.count < GROUP) memcpy(some, add, r.count * 4), add = some;
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++) v[i] += load<WIDTH>(add + i * WIDTH);
}

// Any kind of output. False: one is not finite, and bytes are asked for.
__attribute__((noinline)) static bool put_any(const Int8Product& p, const RowsOut& r, const int32_t* sums, int64_t token,
                                              int64_t tokens, const float* x_scale, const int32_t* zero) {
  bool good = true;
  for (int64_t t = 0; t < tokens; t++) {
    Vec<WIDTH> v[PARTS];
    scaled(r, load_sums(sums + t * GROUP), x_scale[t], zero[t], v);
    add_given(p, r, token + t, v);
    for (int i = 0; p.activation && i < PARTS; i++) v[i] = activate<WIDTH>(v[i], p.activation);
    const int64_t at = (token + t) * p.ldo + r.row;
    float f[GROUP];
    memcpy(f, v, sizeof f);
    if (p.out_type == NUMBER_FLOAT) memcpy((float*)p.out + at, f, r.count * 4);
    else if (p.out_type == NUMBER_BF16) narrow(f, (Bf16*)p.out + at, r.count);
    else {
      uint8_t q[GROUP];
      int32_t high;
      uint32_t low;
      extremes(f, GROUP, high, low), good &= finite(high, low);
      quantize_row<true, 0>(f, GROUP, p.out_scale, p.out_zero, q, GROUP);
      memcpy((uint8_t*)p.out + at, q, r.count);
    }
  }
  return good;
}

// float32 of sixteen whole rows; a function of its own, so that the products stay small.
template <int ACTIVATION>
__attribute__((noinline)) static void put_active(const Int8Product& p, const RowsOut& r, const int32_t* sums, int64_t token,
                                                 int64_t tokens, const float* x_scale, const int32_t* zero) {
  float* out = (float*)p.out + token * p.ldo + r.row;
  for (int64_t t = 0; t < tokens; t++, out += p.ldo) {
    Vec<WIDTH> v[PARTS];
    scaled(r, load_sums(sums + t * GROUP), x_scale[t], zero[t], v);
    add_given(p, r, token + t, v);
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) store<WIDTH>(out + i * WIDTH, activated<WIDTH, ACTIVATION>(v[i]));
  }
}

// Bytes of sixteen whole rows, for a following int8 layer. False: one is not finite.
__attribute__((noinline)) static bool put_bytes(const Int8Product& p, const RowsOut& r, const int32_t* sums, int64_t token,
                                                int64_t tokens, const float* x_scale, const int32_t* zero) {
  const float inverse = 1.0f / p.out_scale;
  uint8_t* out = (uint8_t*)p.out + token * p.ldo + r.row;
  Vec<WIDTH> odd{};  // NaN where an output is not finite
  for (int64_t t = 0; t < tokens; t++, out += p.ldo) {
    Vec<WIDTH> v[PARTS];
    scaled(r, load_sums(sums + t * GROUP), x_scale[t], zero[t], v);
    add_given(p, r, token + t, v);
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) {
      if (p.activation) v[i] = activate<WIDTH>(v[i], p.activation);
      odd += v[i] * 0.0f;
      store_byte_vec(out + i * WIDTH, __builtin_convertvector(levels(v[i], inverse, p.out_zero), ByteVec));
    }
  }
  for (int l = 0; l < WIDTH; l++)
    if (odd[l] != 0.0f) return false;
  return true;
}

// Some of GROUP floats, or of the same in bfloat16.
INLINE void copy_some(const float* from, float* to, int64_t count) {
  for (; count >= 8; count -= 8, from += 8, to += 8) memcpy(to, from, 32);
  for (; count; count--) *to++ = *from++;
}
INLINE void copy_some(const float* from, Bf16* to, int64_t count) { narrow(from, to, count); }

// Rows [0, count) of GROUP pixels each to their images, [image, row, pixel].
template <class T> INLINE void put_pixels(const Int8Product& p, const float* rows, int64_t row, int64_t count, int64_t token, int64_t tokens) {
  for (int64_t done = 0; done < tokens;) {
    const int64_t image = (token + done) / p.plane, pixel = (token + done) % p.plane;
    const int64_t some = p.plane - pixel < tokens - done ? p.plane - pixel : tokens - done;
    T* out = (T*)p.out + (image * p.a.rows + row) * p.plane + pixel;
    for (int64_t r = 0; r < count; r++) copy_some(rows + r * GROUP + done, out + r * p.plane, some);
    done += some;
  }
}

// Outputs in the order of images: blocks of sixteen tokens and rows are transposed.
__attribute__((noinline)) static void put_planes(const Int8Product& p, const RowsOut& r, const int32_t* sums, int64_t token,
                                                 int64_t tokens, const float* x_scale, const int32_t* zero) {
  for (int64_t first = 0; first < tokens; first += GROUP) {
    const int64_t some = tokens - first < GROUP ? tokens - first : GROUP;
    Vec<WIDTH> v[GROUP][PARTS] = {};
    for (int64_t t = 0; t < some; t++) {
      scaled(r, load_sums(sums + (first + t) * GROUP), x_scale[first + t], zero[first + t], v[t]);
      for (int i = 0; p.activation && i < PARTS; i++) v[t][i] = activate<WIDTH>(v[t][i], p.activation);
    }
    alignas(64) float rows[GROUP * GROUP];
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++)
#pragma GCC unroll 4
      for (int j = 0; j < PARTS; j++) {
        Vec<WIDTH> block[WIDTH];
#pragma GCC unroll 16
        for (int t = 0; t < WIDTH; t++) block[t] = v[j * WIDTH + t][i];
        transpose<WIDTH>(block);
#pragma GCC unroll 16
        for (int t = 0; t < WIDTH; t++) store<WIDTH>(rows + (i * WIDTH + t) * GROUP + j * WIDTH, block[t]);
      }
    if (p.out_type == NUMBER_BF16) put_pixels<Bf16>(p, rows, r.row, r.count, token + first, some);
    else put_pixels<float>(p, rows, r.row, r.count, token + first, some);
  }
}

// Sums [tokens, GROUP] of sixteen rows.
INLINE bool put_sums(const Int8Product& p, const RowsOut& r, const int32_t* sums, int64_t token, int64_t tokens, const float* x_scale,
                     const int32_t* zero) {
  if (p.plane) return put_planes(p, r, sums, token, tokens, x_scale, zero), true;
  if (p.out_type == NUMBER_UINT8 && r.count == GROUP) return put_bytes(p, r, sums, token, tokens, x_scale, zero);
  if (p.out_type != NUMBER_FLOAT || r.count != GROUP) return put_any(p, r, sums, token, tokens, x_scale, zero);
  if (p.activation == NONE) put_active<NONE>(p, r, sums, token, tokens, x_scale, zero);
  else if (p.activation == GELU) put_active<GELU>(p, r, sums, token, tokens, x_scale, zero);
  else if (p.activation == SILU) put_active<SILU>(p, r, sums, token, tokens, x_scale, zero);
  else put_active<RELU>(p, r, sums, token, tokens, x_scale, zero);
  return true;
}

// Sixteen rows from `row` on, of T tokens, of which there are `tokens`.
template <int T>
INLINE bool put(const Int8Product& p, int64_t row, const Sums (&sums)[T], int64_t token, int64_t tokens, const float* x_scale,
                const int32_t* zero) {
  const RowsOut r(p, row);
  if (tokens >= T && p.out_type == NUMBER_FLOAT && !p.activation && !p.add && !p.plane && r.count == GROUP) {
    float* out = (float*)p.out + token * p.ldo + row;
#pragma GCC unroll 24
    for (int t = 0; t < T; t++, out += p.ldo) {
      Vec<WIDTH> v[PARTS];
      scaled(r, sums[t], x_scale[t], zero[t], v);
#pragma GCC unroll 4
      for (int i = 0; i < PARTS; i++) store<WIDTH>(out + i * WIDTH, v[i]);
    }
    return true;
  }
  alignas(64) int32_t n[T * GROUP];
#pragma GCC unroll 24
  for (int t = 0; t < T; t++) store_sums(n + t * GROUP, sums[t]);
  return put_sums(p, r, n, token, tokens < T ? tokens : T, x_scale, zero);
}
