// out = act(x @ A.T + bias) for packed rows A and one token; one thread's share.
//
// A group's sixteen rows are the lanes of a vector: for each step, sixteen values times the sixteen activations that
// their columns name. With AVX-512 these come from registers, not from memory: a tile of 128 activations is eight
// registers, and four two-register permutes and three blends look sixteen columns up. Regular patterns need one permute
// only: windows.h. Floor: 5 bytes a value, read once (at 90 % an eighth of dense's bytes), and 11 vector operations for
// sixteen values: 5.5 cycles on Zen 4, which starts two a cycle.
// Elsewhere a scalar loop: gathers of AVX2 were slower (120 against 76 us for 768x3072 at 90 %).

#if defined(__AVX512F__)
INLINE __m512 lookup128(const __m512* x, __m128i bytes) {
  const __m512i c = _mm512_cvtepu8_epi32(bytes);
  const __m512 a = _mm512_permutex2var_ps(x[0], c, x[1]), b = _mm512_permutex2var_ps(x[2], c, x[3]);
  const __m512 d = _mm512_permutex2var_ps(x[4], c, x[5]), e = _mm512_permutex2var_ps(x[6], c, x[7]);
  const __mmask16 bit5 = _mm_test_epi8_mask(bytes, _mm_set1_epi8(32)), bit6 = _mm_test_epi8_mask(bytes, _mm_set1_epi8(64));
  return _mm512_mask_blend_ps(bit6, _mm512_mask_blend_ps(bit5, a, b), _mm512_mask_blend_ps(bit5, d, e));
}

// Tiles of at most 128 columns; x has 128 readable activations.
template <class V> static void token_tile_lookup(const Rows& a, int64_t b, int64_t k, const float* x, float* y) {
  __m512 table[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) table[i] = _mm512_loadu_ps(x + 16 * i);
  const __m128i unused = _mm_set1_epi8(char(a.tile));
  for (int64_t g = 0; g < a.groups(); g++) {
    const int64_t steps = a.steps(b, k, g), first = a.first(b, k, g) * LANES;
    if (!steps) continue;
    const V* v = a.first_value<V>() + first;
    const uint8_t* c = a.crd + first;
    const auto step = [&](int64_t j, __m512 acc) __attribute__((always_inline)) {
      const __m128i bytes = _mm_loadu_si128((const __m128i*)(c + j * LANES));
      return _mm512_mask3_fmadd_ps(lookup128(table, bytes), load16(v + j * LANES), acc,
                                   _mm_cmpneq_epi8_mask(bytes, unused));
    };
    __m512 acc = _mm512_setzero_ps(), other = acc;
    int64_t j = 0;
    for (; j + 1 < steps; j += 2) {
      _mm_prefetch((const char*)(v + (j + 24) * LANES), _MM_HINT_T0);
      _mm_prefetch((const char*)(v + (j + 25) * LANES), _MM_HINT_T0);
      acc = step(j, acc), other = step(j + 1, other);
    }
    if (j < steps) acc = step(j, acc);
    alignas(64) float sum[LANES];
    _mm512_store_ps(sum, _mm512_add_ps(acc, other));
    const int32_t* row = a.row_of(b, k, g);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) y[row[l]] += sum[l];
  }
}

// The same for columns that are told by steps.
template <class V> static void token_tile_near(const Rows& a, int64_t b, int64_t k, const float* x, float* y) {
  __m512 table[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) table[i] = _mm512_loadu_ps(x + 16 * i);
  const __m512i low = _mm512_set1_epi32(15), bit5 = _mm512_set1_epi32(32), bit6 = _mm512_set1_epi32(64);
  for (int64_t g = 0; g < a.groups(); g++) {
    const int64_t steps = a.steps(b, k, g), first = a.first(b, k, g) * LANES;
    if (!steps) continue;
    const V* v = a.first_value<V>() + first;
    const uint8_t* c = a.crd + first / 2;
    __m512i at = _mm512_set1_epi32(-1);
    const auto step = [&](const V* values, __m512 acc) __attribute__((always_inline)) {
      const __m512 p = _mm512_permutex2var_ps(table[0], at, table[1]), q = _mm512_permutex2var_ps(table[2], at, table[3]);
      const __m512 r = _mm512_permutex2var_ps(table[4], at, table[5]), s = _mm512_permutex2var_ps(table[6], at, table[7]);
      const __mmask16 is5 = _mm512_test_epi32_mask(at, bit5), is6 = _mm512_test_epi32_mask(at, bit6);
      const __m512 found = _mm512_mask_blend_ps(is6, _mm512_mask_blend_ps(is5, p, q), _mm512_mask_blend_ps(is5, r, s));
      return _mm512_fmadd_ps(found, load16(values), acc);
    };
    __m512 acc = _mm512_setzero_ps(), other = acc;
    for (const V* end = v + steps * LANES; v != end; v += 2 * LANES, c += LANES) {
      _mm_prefetch((const char*)(v + 24 * LANES), _MM_HINT_T0);
      _mm_prefetch((const char*)(v + 25 * LANES), _MM_HINT_T0);
      const __m512i two = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)c));
      at = _mm512_add_epi32(at, _mm512_and_epi32(two, low));
      acc = step(v, acc);
      at = _mm512_add_epi32(at, _mm512_srli_epi32(two, 4));
      other = step(v + LANES, other);
    }
    alignas(64) float sum[LANES];
    _mm512_store_ps(sum, _mm512_add_ps(acc, other));
    const int32_t* row = a.row_of(b, k, g);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) y[row[l]] += sum[l];
  }
}
#endif

template <class V> static void token_tile_steps(const Rows& a, int64_t b, int64_t k, const float* x, float* y) {
  for (int64_t g = 0; g < a.groups(); g++) {
    const int64_t first = a.first(b, k, g), steps = a.steps(b, k, g);
    const int32_t* row = a.row_of(b, k, g);
    Columns at(a);
    for (int64_t j = first; j < first + steps; j++) {
      at.go_to(j);
      for (int l = 0; l < LANES; l++)
        if (at.entry[l]) y[row[l]] += float(a.first_value<V>()[j * LANES + l]) * x[at.column[l]];
    }
  }
}

template <class V> static void token_tile(const Rows& a, int64_t b, int64_t k, const float* x, float* y) {
  const bool half = a.nibbles();
  for (int64_t g = 0; g < a.groups(); g++) {
    const int64_t first = a.first(b, k, g) * LANES, steps = a.steps(b, k, g);
    const int32_t* row = a.row_of(b, k, g);
    for (int s = 0; s < LANES; s += 8) {
      float sum[8] = {};
      const V* v = a.first_value<V>() + first + s;
      const float* from = x;
      int64_t left = a.per;
      for (int64_t j = 0; j < steps; j++, v += LANES) {
        const uint8_t* c = a.crd + (half ? first / 2 + j / 2 * LANES : first + j * LANES) + s;
        const int down = half ? j % 2 * 4 : 0, mask = half ? 15 : 255;
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) sum[l] += v[l] * from[c[l] >> down & mask];
        if (a.per && --left == 0) left = a.per, from += a.window + 1;
      }
      for (int l = 0; l < 8; l++) y[row[s + l]] += sum[l];
    }
  }
}

// Blocks [b0, b1) of rows.
static void multiply_token(const Product& p, int64_t b0, int64_t b1) {
  const Rows& a = p.a;
  const int64_t tiles = a.tiles(), lines = a.per ? a.tile / a.window * (a.window + 1) : a.lines();
  float* x = scratch((tiles * lines + 160 + a.block) * sizeof(float));
  float* y = x + tiles * lines + 160;
  memset(x, 0, (tiles * lines + 160) * sizeof(float));
  const int64_t run = a.per ? a.window : a.tile;  // columns with a zero behind them
  for (int64_t c = 0, to = 0; c < a.cols; c += run, to += run + 1)
    memcpy(x + to, p.x + c, (a.cols - c < run ? a.cols - c : run) * sizeof(float));
  [[maybe_unused]] bool finite = true;
  for (int64_t c = 0; a.near() && c < a.cols; c++) finite &= p.x[c] * 0.0f == 0.0f;
  for (int64_t b = b0; b < b1; b++) {
    memset(y, 0, a.block * sizeof(float));
    for (int64_t k = 0; k < tiles; k++) {
      const auto tile = [&](auto value) {
        using V = decltype(value);
        const float* from = x + k * lines;
#if defined(__AVX512F__)
        if (a.near() && a.tile <= 128 && finite) return token_tile_near<V>(a, b, k, from, y);
        if (!a.window && a.tile <= 128) return token_tile_lookup<V>(a, b, k, from, y);
#endif
        if (a.near()) token_tile_steps<V>(a, b, k, from, y);
        else token_tile<V>(a, b, k, from, y);
      };
      if (a.bytes) tile(int8_t{});
      else if (a.halves) tile(Bf16{});
      else tile(0.0f);
    }
    const int64_t first = b * a.block, count = a.height(b);
    for (int64_t i = 0; i < count; i++)
      p.out[first + i] = activate_one(
          y[i] * (a.scale ? a.scale[first + i] : 1.0f) + (p.bias ? p.bias[first + i] : 0.0f), p.activation);
  }
}
