// out = act(x @ A.T + bias) for packed rows A and one token; one thread's share.
//
// A group's sixteen rows are the lanes of a vector: for each step, sixteen values times the sixteen activations that
// their columns name. With AVX-512 these come from registers, not from memory: a tile of 128 activations is eight
// registers, and four two-register permutes and three blends look sixteen columns up, in about seven cycles against 25
// and more for a gather. Where the pattern promises `per` steps in every `window` of at most 32 columns (n:m), one
// permute is enough. Floor: 5 bytes a value, read once: at 90 % an eighth of dense's bytes.
// Elsewhere a scalar loop: gathers of AVX2 were slower (120 against 76 us for 768x3072 at 90 %).

#if defined(__AVX512F__)

INLINE __m512 lookup128(const __m512* x, __m512i c) {
  const __m512 a = _mm512_permutex2var_ps(x[0], c, x[1]), b = _mm512_permutex2var_ps(x[2], c, x[3]);
  const __m512 d = _mm512_permutex2var_ps(x[4], c, x[5]), e = _mm512_permutex2var_ps(x[6], c, x[7]);
  const __mmask16 bit5 = _mm512_test_epi32_mask(c, _mm512_set1_epi32(32));
  const __mmask16 bit6 = _mm512_test_epi32_mask(c, _mm512_set1_epi32(64));
  return _mm512_mask_blend_ps(bit6, _mm512_mask_blend_ps(bit5, a, b), _mm512_mask_blend_ps(bit5, d, e));
}

INLINE void add_lanes(float* y, const int32_t* row, __m512 acc) {
  if (row[LANES - 1] - row[0] == LANES - 1 && row[1] == row[0] + 1) {  // rows in their own order
    bool straight = true;
    for (int l = 2; l < LANES - 1; l++) straight &= row[l] == row[0] + l;
    if (straight) {
      _mm512_storeu_ps(y + row[0], _mm512_add_ps(_mm512_loadu_ps(y + row[0]), acc));
      return;
    }
  }
  alignas(64) float sum[LANES];
  _mm512_store_ps(sum, acc);
#pragma GCC unroll 16
  for (int l = 0; l < LANES; l++) y[row[l]] += sum[l];
}

// Any pattern, tiles of at most 128 columns; x has 128 readable activations.
static void token_tile(const Rows& a, int64_t b, int64_t k, const float* x, float* y) {
  __m512 table[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) table[i] = _mm512_loadu_ps(x + 16 * i);
  const int64_t groups = a.groups(), at = (b * a.tiles() + k) * groups;
  const int32_t *pos = a.pos + at, *row = a.row + at * LANES;
  const __m128i unused = _mm_set1_epi8(char(a.tile));
  for (int64_t g = 0; g < groups; g++, row += LANES) {
    const float* v = a.values + int64_t(pos[g]) * LANES;
    const uint8_t* c = a.crd + int64_t(pos[g]) * LANES;
    const int64_t steps = pos[g + 1] - pos[g];
    if (!steps) continue;
    __m512 acc = _mm512_setzero_ps(), other = acc;
    int64_t j = 0;
    for (; j + 1 < steps; j += 2, v += 2 * LANES, c += 2 * LANES) {
      const __m128i c0 = _mm_loadu_si128((const __m128i*)c), c1 = _mm_loadu_si128((const __m128i*)(c + LANES));
      acc = _mm512_mask3_fmadd_ps(lookup128(table, _mm512_cvtepu8_epi32(c0)), _mm512_loadu_ps(v), acc,
                                  _mm_cmpneq_epi8_mask(c0, unused));
      other = _mm512_mask3_fmadd_ps(lookup128(table, _mm512_cvtepu8_epi32(c1)), _mm512_loadu_ps(v + LANES), other,
                                    _mm_cmpneq_epi8_mask(c1, unused));
    }
    if (j < steps) {
      const __m128i c0 = _mm_loadu_si128((const __m128i*)c);
      acc = _mm512_mask3_fmadd_ps(lookup128(table, _mm512_cvtepu8_epi32(c0)), _mm512_loadu_ps(v), acc,
                                  _mm_cmpneq_epi8_mask(c0, unused));
    }
    add_lanes(y, row, _mm512_add_ps(acc, other));
  }
}

// n:m, the whole width of one group at a time: sums stay in a register. Rows are in their own order, no place is unused
// but in the last window of the tensor; x has 32 readable activations from the start of every window.
static void token_windows(const Rows& a, int64_t b, const float* x, float* y) {
  const int64_t groups = a.groups(), tiles = a.tiles(), per = a.per;
  for (int64_t g = 0; g < groups; g++) {
    __m512 acc[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t k = 0; k < tiles; k++) {
      const int64_t at = (b * tiles + k) * groups + g, steps = a.pos[at + 1] - a.pos[at];
      const float *v = a.values + int64_t(a.pos[at]) * LANES, *w = x + k * a.tile;
      const uint8_t* c = a.crd + int64_t(a.pos[at]) * LANES;
      const __m128i unused = _mm_set1_epi8(char(a.tile));
      __builtin_prefetch(a.values + int64_t(a.pos[at + groups]) * LANES);
      for (int64_t j = 0; j < steps; w += a.window) {
        const __m512 low = _mm512_loadu_ps(w), high = _mm512_loadu_ps(w + 16);
        const __m128i base = _mm_set1_epi8(char(w - x - k * a.tile));
        const int64_t end = j + per < steps ? j + per : steps;
        for (int i = 0; j < end; j++, i++, v += LANES, c += LANES) {
          const __m128i c0 = _mm_loadu_si128((const __m128i*)c);
          const __m512 named = _mm512_permutex2var_ps(low, _mm512_cvtepu8_epi32(_mm_sub_epi8(c0, base)), high);
          acc[i & 3] = _mm512_mask3_fmadd_ps(named, _mm512_loadu_ps(v), acc[i & 3], _mm_cmpneq_epi8_mask(c0, unused));
        }
      }
    }
    _mm512_storeu_ps(y + g * LANES, _mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])));
  }
}
#endif

static void token_tile_scalar(const Rows& a, int64_t b, int64_t k, const float* x, float* y) {
  const int64_t groups = a.groups(), at = (b * a.tiles() + k) * groups;
  const int32_t *pos = a.pos + at, *row = a.row + at * LANES;
  for (int64_t g = 0; g < groups; g++, row += LANES)
    for (int s = 0; s < LANES; s += 8) {
      float sum[8] = {};
      const float* v = a.values + int64_t(pos[g]) * LANES + s;
      const uint8_t* c = a.crd + int64_t(pos[g]) * LANES + s;
      for (int64_t j = pos[g]; j < pos[g + 1]; j++, v += LANES, c += LANES)
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) sum[l] += v[l] * x[c[l]];
      for (int l = 0; l < 8; l++) y[row[s + l]] += sum[l];
    }
}

// Blocks [b0, b1) of rows.
static void multiply_token(const Product& p, int64_t b0, int64_t b1) {
  const Rows& a = p.a;
  const int64_t tiles = a.tiles(), stride = a.tile + 1;
  float* x = scratch((tiles * stride + 160 + a.block + LANES) * sizeof(float));
  float* y = x + tiles * stride + 160;
#if defined(__AVX512F__)
  if (a.per) {
    memcpy(x, p.x, a.cols * sizeof(float));
    memset(x + a.cols, 0, (tiles * stride + 160 - a.cols) * sizeof(float));
  } else
#endif
    for (int64_t k = 0; k < tiles; k++) {  // each tile with its zero behind it
      const int64_t count = a.cols - k * a.tile < a.tile ? a.cols - k * a.tile : a.tile;
      memcpy(x + k * stride, p.x + k * a.tile, count * sizeof(float));
      memset(x + k * stride + count, 0, (k + 1 < tiles ? stride - count : stride - count + 160) * sizeof(float));
    }
  for (int64_t b = b0; b < b1; b++) {
    memset(y, 0, a.block * sizeof(float));
#if defined(__AVX512F__)
    if (a.per) token_windows(a, b, x, y);
    else if (a.tile <= 128)
      for (int64_t k = 0; k < tiles; k++) token_tile(a, b, k, x + k * stride, y);
    else
#endif
      for (int64_t k = 0; k < tiles; k++) token_tile_scalar(a, b, k, x + k * stride, y);
    const int64_t first = b * a.block, count = a.rows - first < a.block ? a.rows - first : a.block;
    for (int64_t i = 0; i < count; i++)
      p.out[first + i] = activate_one(y[i] + (p.bias ? p.bias[first + i] : 0.0f), p.activation);
  }
}
