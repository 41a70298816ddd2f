// All kernels of tile_rows.h for one instruction set: compiled once for each, with its flags and its ISA (a namespace) and
// WIDTH. Only static functions and the one table leave here, as in kernels.cpp.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if defined(AMX) && (defined(EMULATED_TILES) || (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11))
#define HAVE_TILES  // else the assembler may not know them, and this builds the same as for AVX-512
#endif

#include "rows.h"
#include "tile_rows.h"

namespace gossamer {
float* scratch(size_t bytes);  // this thread's own memory, at least so large, 64-byte aligned
namespace ISA {

#include "vec.h"

#include "activation.h"

#include "tile_lines.h"

#include "tile_set.h"

#include "tile_vectors.h"

#if defined(HAVE_TILES)
#include "tiles.h"

#include "tile_products.h"
#endif

// Tokens that are computed together: as many as half of the second-level cache holds, but enough to expand a line for; sets are
// of about the same size.
static int64_t set_of(const TileProduct& p) {
  constexpr int64_t CACHE = 1 << 20, LEAST = 128, MOST = 512, STEP = 96;  // of 2 x 16 and of 12
  const int64_t fit = CACHE / (2 * (p.a.cols + 1)), most = fit < LEAST ? LEAST : fit < MOST ? fit : MOST;
  const int64_t sets = (p.tokens + most - 1) / most, each = sets ? (p.tokens + sets - 1) / sets : 1;
  return sets > 1 ? (each + STEP - 1) / STEP * STEP : each;
}

static int64_t items(const TileProduct& p) {
  const int64_t n = set_of(p);
  return (p.tokens + n - 1) / n * p.a.groups();
}

static void some(const TileProduct& p, const TokenSet& s, int64_t g0, int64_t g1, Bf16* room) {
#if defined(HAVE_TILES)
  if (s.tokens > 1) by_tiles(p, s, g0, g1, room);
  else
#endif
    by_vectors(p, s, g0, g1, room);
  exact_tokens(p, s, g0, g1);
}

static Bf16* room_for(const TileProduct& p, [[maybe_unused]] int64_t tokens) {
  const int64_t lines = (p.a.pairs() + 15) / 16 * 16, wide = lines > 32 ? lines : 32;
  int64_t values = 4 * wide * LINE;  // two panels of two groups, or two times four tiles
#if defined(HAVE_TILES)
  values += tiles_of_tokens(p.a, tokens);
#endif
  return (Bf16*)scratch(values * sizeof(Bf16));
}

// Item i: set i / groups, group of rows i % groups.
static void product(const TileProduct& p, int64_t begin, int64_t end) {
  const int64_t n = set_of(p), groups = p.a.groups();
  Bf16* room = room_for(p, n);
  while (begin < end) {
    const int64_t t = begin / groups, g0 = begin % groups, g1 = end - t * groups < groups ? end - t * groups : groups;
    const int64_t tokens = p.tokens - t * n < n ? p.tokens - t * n : n;
    some(p, {p.x + t * n * p.ldx, p.ldx, t * n, tokens}, g0, g1, room);
    begin = t * groups + g1;
  }
}

}  // namespace ISA

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
extern const TileKernels JOIN(tiles_, ISA);
const TileKernels JOIN(tiles_, ISA) = {TEXT(ISA), ISA::items, ISA::product};

}  // namespace gossamer
