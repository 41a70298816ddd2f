// The kernels without Python, for the sanitizers: every array is exactly as large as promised, results are compared with
// a plain loop in double precision. Prints what failed and returns 1; "ok" and the number of cases otherwise.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "dimension.h"
#include "int8.h"
#include "int8_geometry.h"
#include "rows.h"
#include "tile_rows.h"

using namespace gossamer;

static uint32_t state = 1;
static uint32_t next() { return state = state * 1664525u + 1013904223u, state >> 8; }
static float number() { return float(next() % 2000) / 1000.0f - 0.9995f; }  // never 0: a kept 0 times an infinity is NaN

struct Case {  // a dense matrix, and its packed rows
  int64_t rows = 0, cols = 0;
  std::vector<float> dense, values, scale;
  std::vector<int8_t> bytes;
  std::vector<Bf16> halves;
  std::vector<int32_t> row, pos;
  std::vector<uint8_t> crd;
  Rows a{};
};

static void finish(Case& c) {
  c.a.rows = c.rows, c.a.cols = c.cols, c.a.row = c.row.data(), c.a.pos = c.pos.data();
  c.a.crd = c.crd.data(), c.a.values = c.values.data();
  c.a.count();
}

static Case any_pattern(int64_t rows, int64_t cols, int64_t block, int64_t tile, unsigned one_in) {
  Case c;
  c.rows = rows, c.cols = cols;
  c.dense.assign(rows * cols, 0.0f);
  for (float& v : c.dense)
    if (next() % one_in == 0) v = number();
  c.a.block = block, c.a.tile = tile;
  c.pos.push_back(0);
  for (int64_t b = 0; b * block < rows; b++)
    for (int64_t k = 0; k * tile < cols; k++)
      for (int64_t g = 0; g < block / LANES; g++) {
        std::vector<std::vector<int64_t>> kept(LANES);
        size_t steps = 0;
        for (int l = 0; l < LANES; l++) {
          const int64_t inside = block - 1 - (g * LANES + l), r = b * block + inside;  // rows backwards: an order of its own
          c.row.push_back(int32_t(inside));
          for (int64_t j = k * tile; r < rows && j < cols && j < (k + 1) * tile; j++)
            if (c.dense[r * cols + j] != 0.0f) kept[l].push_back(j);
          steps = kept[l].size() > steps ? kept[l].size() : steps;
        }
        for (size_t j = 0; j < steps; j++)
          for (int l = 0; l < LANES; l++) {
            const int64_t r = b * block + c.row[c.row.size() - LANES + l];
            c.crd.push_back(uint8_t(j < kept[l].size() ? kept[l][j] - k * tile : tile));
            c.values.push_back(j < kept[l].size() ? c.dense[r * cols + kept[l][j]] : 0.0f);
          }
        c.pos.push_back(c.pos.back() + int32_t(steps));
      }
  finish(c);
  return c;
}

// The same pattern, its columns told by steps.
static Case near(const Case& from) {
  Case c;
  c.rows = from.rows, c.cols = from.cols, c.dense = from.dense, c.row = from.row;
  c.a.block = from.a.block, c.a.tile = from.a.tile, c.a.window = 15;
  c.pos.push_back(0);
  for (size_t g = 0; g + 1 < from.pos.size(); g++) {
    std::vector<std::vector<std::pair<int, float>>> steps(LANES);
    size_t most = 0;
    for (int l = 0; l < LANES; l++) {
      int before = -1;
      for (int64_t j = from.pos[g]; j < from.pos[g + 1]; j++) {
        const int column = from.crd[j * LANES + l];
        if (column == from.a.tile) continue;
        for (; column - before > 14; before += 15) steps[l].push_back({15, 0.0f});
        steps[l].push_back({column - before, from.values[j * LANES + l]}), before = column;
      }
      most = steps[l].size() > most ? steps[l].size() : most;
    }
    most = (most + 1) / 2 * 2;
    for (size_t j = 0; j < most; j++)
      for (int l = 0; l < LANES; l++) {
        const std::pair<int, float> it = j < steps[l].size() ? steps[l][j] : std::pair<int, float>(0, 0.0f);
        c.values.push_back(it.second);
        if (j % 2 == 0) c.crd.push_back(uint8_t(it.first));
        else c.crd[c.crd.size() - LANES + l] |= uint8_t(it.first << 4);
      }
    c.pos.push_back(c.pos.back() + int32_t(most));
  }
  finish(c);
  return c;
}

static Case regular(int64_t lanes, int64_t rows, int64_t cols, int64_t block, int64_t window, int64_t per) {
  Case c;
  c.rows = rows, c.cols = cols;
  c.dense.assign(rows * cols, 0.0f);
  c.a.block = block, c.a.window = window, c.a.per = per, c.a.tile = regular_tile(lanes, cols, window, per);
  for (int64_t r = 0; r < block; r++) c.row.push_back(int32_t(r));
  finish(c);
  const int64_t groups = (rows + block - 1) / block * block / LANES;
  for (int64_t g = 0; g < groups; g++)
    for (int64_t w = 0; w < c.a.each() / per; w++)
      for (int64_t e = 0; e < per; e++)
        for (int l = 0; l < LANES; l++) {
          const int64_t r = g * LANES + l, j = w * window + e * (window / per) + next() % (window / per);
          const bool used = r < rows && j < cols;
          if (used) c.dense[r * cols + j] = number();
          const bool kept = used && next() % 8;  // a pattern may keep less than n of m
          if (used && !kept) c.dense[r * cols + j] = 0.0f;
          c.crd.push_back(uint8_t(kept ? j - w * window : window));
          c.values.push_back(kept ? c.dense[r * cols + j] : 0.0f);
        }
  if (c.a.nibbles()) {  // two steps in a byte
    std::vector<uint8_t> bytes;
    for (size_t at = 0; at < c.crd.size(); at += 2 * LANES)
      for (int l = 0; l < LANES; l++) bytes.push_back(uint8_t(c.crd[at + l] | c.crd[at + LANES + l] << 4));
    c.crd = bytes;
  }
  finish(c);
  return c;
}

static Case int8(Case c) {  // the same pattern, its values in bytes, a scale for each row
  for (float v : c.values) c.bytes.push_back(int8_t(std::lround(v * 127)));
  for (int64_t r = 0; r < c.rows; r++) {
    c.scale.push_back(0.01f * float(1 + r % 3));
    for (int64_t j = 0; j < c.cols; j++) c.dense[r * c.cols + j] = float(std::lround(c.dense[r * c.cols + j] * 127)) * c.scale[r];
  }
  finish(c);
  c.a.values = nullptr, c.a.bytes = c.bytes.data(), c.a.scale = c.scale.data();
  return c;
}

static std::vector<Bf16> rounded(const std::vector<float>& values) {
  std::vector<Bf16> made(values.size());
  kernels().narrow(values.data(), made.data(), int64_t(values.size()));
  return made;
}

static Case bfloat16(Case c) {  // the same pattern, its values rounded
  c.halves = rounded(c.values);
  const std::vector<Bf16> dense = rounded(c.dense);
  for (size_t i = 0; i < dense.size(); i++) c.dense[i] = dense[i];
  finish(c);
  c.a.values = nullptr, c.a.halves = c.halves.data();
  return c;
}

static int failures = 0, cases = 0;

static void expect(double got, double want, double size, const char* what, const Case& c, int64_t tokens) {
  if (std::fabs(got - want) <= (c.cols + tokens + 2) * 6e-8 * size) return;
  if (failures++ < 10) printf("%s %ldx%ld tokens %ld: %g, must be %g\n", what, long(c.rows), long(c.cols), long(tokens), got, want);
}

static double activated(double v, int64_t activation) {
  if (activation == RELU) return v < 0 ? 0 : v;
  if (activation == GELU) return 0.5 * v * (1 + std::erf(v * std::sqrt(0.5)));
  return activation == SILU ? v / (1 + std::exp(-v)) : v;
}

// The number without the bits that bfloat16 hasn't.
static float cut(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4), bits &= 0xFFFF0000u, memcpy(&v, &bits, 4);
  return v;
}

// `halves`: x is bfloat16.
static void product(const Kernels& kernels, const Case& c, int64_t tokens, bool wide, bool halves = false) {
  const std::unique_ptr<float[]> x(new float[tokens * c.cols]), out(new float[tokens * c.rows]), bias(new float[c.rows]);
  for (int64_t i = 0; i < tokens * c.cols; i++) x[i] = halves ? cut(number()) : number();
  for (int64_t i = 0; i < c.rows; i++) bias[i] = number();
  const int64_t activation = cases % 4;
  Product p{c.a, x.get(), c.cols, tokens, bias.get(), activation, out.get(), c.rows, wide, nullptr, halves};
  const int64_t items = kernels.items(p), half = items / 2;
  kernels.product(p, 0, half), kernels.product(p, half, items);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t r = 0; r < c.rows; r++) {
      double sum = bias[r], size = std::fabs(bias[r]);
      for (int64_t j = 0; j < c.cols; j++)
        sum += double(x[t * c.cols + j]) * c.dense[r * c.cols + j], size += std::fabs(double(x[t * c.cols + j]) * c.dense[r * c.cols + j]);
      expect(out[t * c.rows + r], activated(sum, activation), size + std::fabs(sum), "product", c, tokens);
    }
  cases++;
}

// A column that is not finite reaches the rows that keep something there, and no other: places without an entry are not
// multiplied by what they name.
static void infinite(const Kernels& kernels, const Case& c, int64_t tokens, bool halves = false) {
  std::vector<float> x(tokens * c.cols, 1.0f), out(tokens * c.rows);
  const int64_t column = c.cols / 2, token = tokens - 1;
  x[token * c.cols + column] = INFINITY;
  Product p{c.a, x.data(), c.cols, tokens, nullptr, NONE, out.data(), c.rows, false, nullptr, halves};
  kernels.product(p, 0, kernels.items(p));
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t r = 0; r < c.rows; r++) {
      const bool want = t != token || c.dense[r * c.cols + column] == 0.0f;
      if (std::isfinite(out[t * c.rows + r]) != want && failures++ < 10)
        printf("infinite %ldx%ld token %ld of %ld: %g\n", long(c.rows), long(c.cols), long(t), long(tokens), out[t * c.rows + r]);
    }
  cases++;
}

static void sample(const Kernels& kernels, const Case& c, int64_t tokens) {
  const std::unique_ptr<float[]> left(new float[tokens * c.rows]), right(new float[tokens * c.cols]);
  for (int64_t i = 0; i < tokens * c.rows; i++) left[i] = number();
  for (int64_t i = 0; i < tokens * c.cols; i++) right[i] = number();
  std::vector<float> grad(c.values.size(), NAN);  // every place must be written
  Sample p{c.a, left.get(), right.get(), c.rows, c.cols, tokens, grad.data()};
  const int64_t half = c.a.blocks() / 2;
  kernels.sample(p, 0, half), kernels.sample(p, half, c.a.blocks());
  // Through the values: sum of grad * value over all places is the sum over the matrix of (left.T @ right) * dense.
  double got = 0, want = 0, size = 0;
  for (size_t i = 0; i < c.values.size(); i++) got += double(grad[i]) * c.values[i];
  for (int64_t r = 0; r < c.rows; r++)
    for (int64_t j = 0; j < c.cols; j++)
      for (int64_t t = 0; t < tokens; t++) {
        const double term = double(left[t * c.rows + r]) * right[t * c.cols + j] * c.dense[r * c.cols + j];
        want += term, size += std::fabs(term);
      }
  expect(got, want, size, "sample", c, tokens);
  cases++;
}

// Places without an entry have a gradient of 0, also where left and right are not finite, and if there are no tokens.
static void infinite_sample(const Kernels& kernels, const Case& c, int64_t tokens) {
  std::vector<float> left(tokens * c.rows, INFINITY), right(tokens * c.cols, 1.0f), grad(c.values.size(), NAN);
  Sample p{c.a, left.data(), right.data(), c.rows, c.cols, tokens, grad.data()};
  kernels.sample(p, 0, c.a.blocks());
  for (size_t i = 0; i < grad.size(); i++) {
    const bool zero = !tokens || (c.a.per ? c.a.code(int64_t(i)) == c.a.window : c.values[i] == 0.0f);
    if ((zero ? grad[i] != 0.0f : grad[i] != INFINITY) && failures++ < 10)
      printf("infinite sample %ldx%ld tokens %ld: %g\n", long(c.rows), long(c.cols), long(tokens), grad[i]);
  }
  cases++;
}

#include "core_blocks.h"

#include "core_int8.h"

#include "core_int8_images.h"

#include "core_images.h"

#include "core_attention.h"

#include "core_tiles.h"

int main() {
  for (const char* name : {"baseline", "avx2", "avxvnni", "avx512vnni", "avx512vbmi", "amx"})
    if (const Int8Kernels* kernels = int8_kernels_named(name)) all_int8(*kernels), all_int8_images(*kernels);
#if defined(EMULATED_AVXVNNI)  // AVX-VNNI by the same instructions of AVX-512
  if (int8_kernels_named("avx512vnni")) all_int8(int8_avxvnni), all_int8_images(int8_avxvnni);
#endif
#if defined(EMULATED_TILES)
  if (int8_kernels_named("avx512vbmi") && !int8_kernels_named("amx")) all_int8(int8_amx), all_int8_images(int8_amx);
#endif
  for (const char* name : {"baseline", "avx512", "amx"})
    if (const TileKernels* kernels = tile_kernels_named(name)) all_tiles(*kernels);
#if defined(EMULATED_TILES)
  if (tile_kernels_named("avx512") && !tile_kernels_named("amx")) all_tiles(tiles_amx);
#endif
  for (const char* name : {"baseline", "avx2", "avx512"}) {
    const Kernels* kernels = kernels_named(name);
    if (!kernels) continue;
    all_blocks(*kernels);
    conversions(*kernels);
    all_images(*kernels);
    all_attention(*kernels);
    std::vector<Case> all;
    all.push_back(any_pattern(1, 1, 16, 128, 1));
    all.push_back(any_pattern(50, 131, 32, 128, 4));
    all.push_back(any_pattern(33, 300, 48, 240, 9));
    all.push_back(any_pattern(20, 70, 32, 7, 3));
    all.push_back(any_pattern(20, 70, 32, 128, 1000000));
    for (int i = 0; i < 5; i++) all.push_back(near(all[i]));
    all.push_back(near(any_pattern(50, 200, 64, 128, 2)));
    all.push_back(regular(kernels->lanes, 1, 1, 16, 32, 16));
    all.push_back(regular(kernels->lanes, 50, 131, 64, 32, 16));
    all.push_back(regular(kernels->lanes, 17, 61, 32, 20, 1));
    all.push_back(regular(kernels->lanes, 17, 100, 32, 40, 1));
    all.push_back(regular(kernels->lanes, 1, 1, 16, 12, 6));  // two steps in a byte from here on
    all.push_back(regular(kernels->lanes, 50, 131, 64, 12, 6));
    all.push_back(regular(kernels->lanes, 70, 299, 48, 10, 1));
    all.push_back(regular(kernels->lanes, 33, 540, 48, 15, 5));
    all.push_back(regular(kernels->lanes, 20, 14, 32, 14, 7));
    all.push_back(regular(kernels->lanes, 33, 1650, 48, 10, 1));  // three tiles of AVX-512
    for (const Case& c : all) {
      const Case small = int8(c), half = bfloat16(c);
      for (int64_t tokens : {1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 65}) {
        product(*kernels, c, tokens, false);
        product(*kernels, c, tokens, true);
        sample(*kernels, c, tokens);
        product(*kernels, small, tokens, false);
        product(*kernels, small, tokens, true);
        product(*kernels, half, tokens, false);
        product(*kernels, half, tokens, true, true);
        infinite(*kernels, c, tokens);
        infinite(*kernels, half, tokens, true);
        infinite_sample(*kernels, c, tokens);
      }
      infinite_sample(*kernels, c, 0);
    }
  }
  if (failures) return printf("%d wrong values\n", failures), 1;
  printf("ok %d\n", cases);
  return 0;
}
