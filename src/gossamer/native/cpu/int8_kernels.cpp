// All int8 kernels for one instruction set: compiled once for each, with its flags and its ISA (a namespace) and WIDTH.
// Only static functions and the one table leave here, as in kernels.cpp.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if defined(AVXVNNI)  // not by a flag: gcc 10 and clang 11 don't know it, and build the same as for AVX2
#if defined(__clang__) && __clang_major__ >= 12
#define HAVE_AVXVNNI
#pragma clang attribute push(__attribute__((target("avxvnni"))), apply_to = function)
#elif !defined(__clang__) && __GNUC__ >= 11
#define HAVE_AVXVNNI
#pragma GCC target("avxvnni")
#endif
#endif
#if defined(AMX) && (defined(EMULATED_TILES) || (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11))
#define HAVE_TILES  // else the assembler may not know them, and this builds the same as for AVX-512 VBMI
#endif

#include "int8.h"
#include "rows.h"

namespace gossamer {
float* scratch(size_t bytes);  // this thread's own memory, at least so large, 64-byte aligned
namespace ISA {

#include "vec.h"

#include "activation.h"

#include "convert.h"

#include "int8_vec.h"

#include "int8_quantize.h"

#include "int8_patches.h"

#include "int8_out.h"

#include "int8_lookup.h"

#include "int8_bitmap.h"

#include "int8_dense.h"

#include "int8_few.h"

#include "int8_lines.h"

constexpr int MOST_TOKENS = 256;  // of a set

struct Set {  // some tokens in eight bits
  int64_t token, tokens;
  const uint8_t* q;
  int64_t pitch;
  float scale[MOST_TOKENS];
  int32_t zero[MOST_TOKENS];
};

#if defined(HAVE_TILES)
#include "int8_tiles.h"
#endif

// Tokens of a set if none is larger than `most`: sets of one size, a multiple of `step`, so that threads which take half of
// the sets each do half of the work. 64 tokens are 36 and 28, not 48 and 16.
static int64_t evenly(int64_t tokens, int64_t most, int64_t step) {
  const int64_t sets = (tokens + most - 1) / most, each = sets ? (tokens + sets - 1) / sets : 1;
  return (each + step - 1) / step * step;
}

// Tokens whose activations are made ready at once.
static int64_t set_of(const Int8Product& p) {
  constexpr bool wide = WIDTH == 16;
#if defined(HAVE_TILES)
  if (by_tiles(p)) return evenly(p.tokens, TILE_SET, 16);
#endif
  if (p.a.kind == INT8_DENSE || p.a.kind == INT8_BITMAP) return wide ? evenly(p.tokens, 48, 12) : 16;
  if (p.a.kind == INT8_LINES) return wide && p.tokens > 16 ? 32 : 16;
  if (p.a.tall == 4) return wide ? 12 : 2;
  if (!wide) return 4;
  // 24 tokens of a tile are more than the first-level cache holds: worth it if a line is used by more than one step
  return p.tokens > 16 && p.a.steps >= 2 * p.a.units() * p.a.windows() ? 24 : 16;
}

static int64_t items(const Int8Product& p) {
  const int64_t n = set_of(p);
  return (p.tokens + n - 1) / n * p.a.units();
}

template <int T, int TALL, int K>
static bool lookup_set(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, uint8_t* room) {
  const int64_t tiles = p.a.tiles(), size = p.a.windows() * T * WINDOW;
  const auto some = [&](int64_t t) -> LookupTokens {
    if (t >= s.tokens) t = 0;
    else lookup_panel<T>(p.a, s.q + t * s.pitch, s.pitch, room + t / T * size);
    return {p, s.token + t, s.tokens - t < T ? s.tokens - t : T, tiles, s.scale + t, s.zero + t, room + t / T * size};
  };
  const LookupTokens tokens[2] = {some(0), some(T)};
  const int sets = s.tokens > T ? 2 : 1;
  return lookup_groups<T, TALL, K>(p.a, tokens, sets, g0, g1, (int32_t*)(room + sets * size));
}

template <int TALL, int K> static bool lookup_by(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, uint8_t* room) {
  if constexpr (WIDTH == 16 && TALL == 1) {
    if (s.tokens > 16) return lookup_set<24, 1, K>(p, s, g0, g1, room);
    if (s.tokens > 8) return lookup_set<16, 1, K>(p, s, g0, g1, room);
    if (s.tokens > 4) return lookup_set<8, 1, K>(p, s, g0, g1, room);
  }
  if constexpr (WIDTH == 16 && TALL == 4)
    if (s.tokens > 4) return lookup_set<6, 4, K>(p, s, g0, g1, room);
  if constexpr (WIDTH == 16 || TALL == 1)
    if (s.tokens > 2) return lookup_set<4, TALL, K>(p, s, g0, g1, room);
  return s.tokens > 1 ? lookup_set<2, TALL, K>(p, s, g0, g1, room) : lookup_set<1, TALL, K>(p, s, g0, g1, room);
}

template <int TALL> static bool lookup_any(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, uint8_t* room) {
  if (p.a.wide == 4) return lookup_by<TALL, 0>(p, s, g0, g1, room);
#if defined(__AVX2__) && !defined(__AVX512VBMI__)
  if (p.a.window <= 16) return lookup_by<TALL, 1>(p, s, g0, g1, room);
  if (p.a.window <= 32) return lookup_by<TALL, 2>(p, s, g0, g1, room);
#endif
  return lookup_by<TALL, 4>(p, s, g0, g1, room);
}

static bool dense_set(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, int8_t* room) {
  if (s.tokens <= FEW)
    return p.a.kind == INT8_DENSE ? few_groups<DenseQuads>(p, g0, g1, s.token, s.tokens, s.q, s.pitch, s.scale, s.zero)
                                  : few_groups<BitmapQuads>(p, g0, g1, s.token, s.tokens, s.q, s.pitch, s.scale, s.zero);
  bool good = true;
  for (int64_t g = g0; g < g1;) {
    const int64_t some = WIDTH == 16 && g + 2 <= g1 ? 2 : 1;
    const Panel values = panel_of<1>(p.a, g, some, room);
    for (int64_t t = 0; t < s.tokens;) {
      const int64_t left = s.tokens - t;
      const uint8_t* q = s.q + t * s.pitch;
      const auto run = [&](auto groups, auto count) __attribute__((always_inline)) {
        constexpr int G = decltype(groups)::value, T = decltype(count)::value;
        good &= dense_tokens<G, T>(p, values, g, s.token + t, left < T ? left : T, q, s.pitch, s.scale + t, s.zero + t);
        t += T;
      };
      const auto tokens = [&](auto groups) __attribute__((always_inline)) {
        if constexpr (WIDTH == 16)
          if (left > 8) return run(groups, std::integral_constant<int, 12>{});
        if constexpr (WIDTH == 16)
          if (left > 6) return run(groups, std::integral_constant<int, 8>{});
        if constexpr (WIDTH == 16)
          if (left > 4) return run(groups, std::integral_constant<int, 6>{});
        if (left > 1) return run(groups, std::integral_constant<int, 4>{});
        return run(groups, std::integral_constant<int, 1>{});
      };
      if constexpr (WIDTH == 16)
        if (some == 2) {
          tokens(std::integral_constant<int, 2>{});
          continue;
        }
      tokens(std::integral_constant<int, 1>{});
    }
    g += some;
  }
  return good;
}

// Bytes that a set of n tokens needs beside its activations.
static int64_t room_of(const Int8Product& p, int64_t n, int64_t pitch) {
  const Int8Weight& a = p.a;
#if defined(HAVE_TILES)
  if (by_tiles(p)) return tile_room(a);
#endif
  if (a.kind == INT8_DENSE) return 0;
  if (a.kind == INT8_BITMAP) return 2 * a.quads() * WINDOW;
  if (a.kind == INT8_LINES) return pitch * n + (a.block + 16) * n * 4;
  return a.windows() * n * WINDOW + BLOCK * n * 4;
}

// Item i: set of tokens i / units, unit of rows i % units. Neighbours share a set.
static bool product(const Int8Product& p, int64_t begin, int64_t end) {
  const Int8Weight& a = p.a;
  const int64_t units = a.units(), n = set_of(p), pitch = (a.cols + 63) / 64 * 64 + 64;
  const int64_t rows = (n + 15) / 16 * 16 * pitch;  // T of some kernel, at most
  const int64_t room_bytes = room_of(p, n, pitch);
  uint8_t *q = (uint8_t*)scratch(rows + room_bytes + 256), *room = q + rows;
  bool good = true;
  while (begin < end) {
    const int64_t at = begin / units, first = begin % units, last = end - at * units < units ? end - at * units : units;
    Set s;
    s.token = at * n, s.tokens = p.tokens - s.token < n ? p.tokens - s.token : n, s.q = q, s.pitch = pitch;
    if (p.patches) gather_patches<OFFSET>(p, s.token, s.tokens, q, pitch, s.scale, s.zero);
    else quantize_tokens<OFFSET>(p, a.cols, s.token, s.tokens, q, pitch, s.scale, s.zero);
#if defined(HAVE_TILES)
    if (by_tiles(p)) good &= tile_any(p, s, first, last, (int8_t*)room);
    else
#endif
    if (a.kind == INT8_DENSE || a.kind == INT8_BITMAP) good &= dense_set(p, s, first, last, (int8_t*)room);
    else if (a.kind == INT8_LINES)
      good &= n == 32 ? lines_tokens<2>(p, first, last, s.token, s.tokens, q, pitch, s.scale, s.zero, room)
                      : lines_tokens<1>(p, first, last, s.token, s.tokens, q, pitch, s.scale, s.zero, room);
    else good &= a.tall == 4 ? lookup_any<4>(p, s, first, last, room) : lookup_any<1>(p, s, first, last, room);
    begin = at * units + last;
  }
  return good;
}

}  // namespace ISA

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#if !defined(__AVX2__) || defined(__AVX512VBMI__)
constexpr int64_t WIDEST = 64;
#else
constexpr int64_t WIDEST = 16;
#endif
extern const Int8Kernels JOIN(int8_, ISA);
const Int8Kernels JOIN(int8_, ISA) = {TEXT(ISA),    WIDEST,        ISA::items, ISA::product,
                                      ISA::quantize, ISA::image_extremes, ISA::image_ranges, ISA::image_rows,
                                      ISA::image_planes};

}  // namespace gossamer

#if defined(HAVE_AVXVNNI) && defined(__clang__)
#pragma clang attribute pop
#endif
