// DENSE and BITMAP by AMX: sixteen tokens x 64 columns, times 64 columns x sixteen rows, which DENSE stores as a tile already.
//
// Floor, 16 tokens x 16 rows x 64 columns: one product of 16 cycles (a cycle for each token), two loads of 8 cycles unless a
// tile is used again: 2 x 2 tiles of sums need four loads for four products. From sums to outputs: four cycles for sixteen of
// them (int8_out.h); they are computed between the products of the next block, because the products leave the ports for
// vectors idle. With 16 tokens or fewer the weight's bytes bound it: 1 x 4 tiles, and a BITMAP is expanded tile by tile.
//
// Measured on a Xeon (2 MB of second-level cache), dense, microseconds for 768x768 / 3072x768 / 768x3072:
//   16 tokens      12 / 83 / 79      VNNI 30 / 127 / 123    BITMAP at 50 % 20 / 90 / 64
//   1024 tokens    756 / 3450 / 2885      VNNI 1707 / 7331 / 7213      of these, quantising takes 156 / 139 / 662
// A weight that is in the second-level cache is read faster than it is expanded; one that is not is not: called in turns with
// others, the BITMAP of 3072x768 took 98 us for 16 tokens and the dense weight 118.
// Tried: sets of 64 tokens (768x3072: 19 % slower) and of 256 (5 % faster to 16 % slower); outputs behind each block instead
// of between products (6 to 36 % slower with 1024 tokens); asking for the next pair of groups (up to 7 % faster with 128 and
// more tokens: kept) or for the next tiles with 16 tokens (up to 13 % slower); VNNI for one token (768x768: 37 % slower).

#include "tiles.h"

constexpr int64_t TILE_QUADS = 16, TILE_BYTES = 1024;
constexpr int64_t TILE_SET = 128;  // tokens of a set

static int64_t tile_blocks(const Int8Weight& a) { return (a.quads() + TILE_QUADS - 1) / TILE_QUADS; }

// Registers: sums in 0 .. 3, activations in 4 (and 5), weights in the others.
static TileShapes shapes_of(int64_t tokens) {
  TileShapes s;
  for (int tile = 0; tile < 8; tile++) s.set(tile, tokens < 16 && tile < 5 ? tokens : 16);
  return s;
}

// Sums of one block of tokens and rows; where they belong.
struct TileSums {
  alignas(64) int32_t of[4][16 * GROUP];
  int64_t token = 0, row = 0, tokens = 0, groups = 0, done = 0;  // done: tokens that are written
  const float* scale = nullptr;
  const int32_t* zero = nullptr;

  INLINE_MEMBER const int32_t* at(int64_t t, int64_t g) const { return of[t / 16 * groups + g] + t % 16 * GROUP; }
};

// Outputs of `count` more tokens, in float32 and of whole groups.
template <int ACTIVATION> INLINE void tile_drain(const Int8Product& p, TileSums& s, int64_t count) {
  const int64_t end = s.done + count < s.tokens ? s.done + count : s.tokens;
  for (; s.done < end; s.done++)
    for (int64_t g = 0; g < s.groups; g++) {
      const RowsOut r(p, s.row + g * GROUP);
      Vec<WIDTH> v[PARTS];
      scaled(r, load_sums(s.at(s.done, g)), s.scale[s.done], s.zero[s.done], v);
      add_given(p, r, s.token + s.done, v);
      float* out = (float*)p.out + (s.token + s.done) * p.ldo + r.row;
#pragma GCC unroll 4
      for (int i = 0; i < PARTS; i++) store<WIDTH>(out + i * WIDTH, activated<WIDTH, ACTIVATION>(v[i]));
    }
}

// The rest of them.
static bool tile_put(const Int8Product& p, TileSums& s) {
  bool good = true;
  for (int64_t t = s.done; t < s.tokens; t += 16 - t % 16)
    for (int64_t g = 0; g < s.groups; g++) {
      const int64_t end = (t / 16 + 1) * 16, some = (end < s.tokens ? end : s.tokens) - t;
      good &= put_sums(p, RowsOut(p, s.row + g * GROUP), s.at(t, g), s.token + t, some, s.scale + t, s.zero + t);
    }
  s.done = s.tokens;
  return good;
}

template <int TA, int TB> INLINE void tile_store_all(TileSums& s) {
  if constexpr (TA * TB > 0) tile_store<0>(s.of[0], WINDOW);
  if constexpr (TA * TB > 1) tile_store<1>(s.of[1], WINDOW);
  if constexpr (TA * TB > 2) tile_store<2>(s.of[2], WINDOW);
  if constexpr (TA * TB > 3) tile_store<3>(s.of[3], WINDOW);
}

// TA tiles of tokens, TB of rows, all columns. What waits in `s` is written between the products; `lines` of the weight from
// `ahead` on are asked for in each step.
template <int TA, int TB, int ACTIVATION>
INLINE void tile_block(const Int8Product& p, const uint8_t* q, int64_t pitch, const Panel& w, TileSums& s, const int8_t*& ahead, int64_t lines) {
  const int64_t blocks = tile_blocks(p.a), each = (s.tokens - s.done + blocks - 1) / blocks;
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  const int8_t* v = w.v;
  for (int64_t k = 0; k < blocks; k++, v += TILE_BYTES, q += WINDOW) {
    tile_load<4>(q, pitch), tile_load<6>(v, WINDOW);
    tile_dot_bytes<0, 4, 6>();
    if constexpr (TB == 2) tile_load<7>(v + w.pitch, WINDOW), tile_dot_bytes<1, 4, 7>();
    if constexpr (TA == 2) tile_load<5>(q + 16 * pitch, pitch), tile_dot_bytes<TB, 5, 6>();
    if constexpr (TA == 2 && TB == 2) tile_dot_bytes<3, 5, 7>();
    tile_drain<ACTIVATION>(p, s, each);
    for (int64_t i = 0; i < lines; i++, ahead += WINDOW) __builtin_prefetch(ahead, 0, 1);
  }
}

// Up to sixteen tokens, TB groups of rows. A BITMAP is expanded into `room`, a tile at a time.
template <int TB>
INLINE void tile_few(const Int8Product& p, const uint8_t* q, int64_t pitch, int64_t group, const Panel& w, int8_t* room) {
  const Int8Weight& a = p.a;
  const int64_t blocks = tile_blocks(a), quads = a.quads();
  const bool bitmap = a.kind == INT8_BITMAP;
  const int8_t* from[TB];
  const uint8_t* bits[TB];
  for (int g = 0; g < TB; g++) {
    from[g] = bitmap ? a.values + a.pos[group + g] : w.v + g * w.pitch;
    bits[g] = bitmap ? bits_of(a, group + g) : nullptr;
  }
  const auto next = [&](int g, int64_t k) __attribute__((always_inline)) -> const int8_t* {
    if (!bitmap) return from[g] + k * TILE_BYTES;
    int8_t* to = room + g * TILE_BYTES;
    const int64_t first = k * TILE_QUADS, last = first + TILE_QUADS < quads ? first + TILE_QUADS : quads;
    for (int64_t i = first; i < last; i++) from[g] = expand_quad(bits[g] + 8 * i, from[g], to + (i - first) * WINDOW);
    for (int64_t i = last; i < first + TILE_QUADS; i++) memset(to + (i - first) * WINDOW, 0, WINDOW);
    return to;
  };
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int64_t k = 0; k < blocks; k++, q += WINDOW) {
    tile_load<4>(q, pitch);
    tile_load<5>(next(0, k), WINDOW), tile_dot_bytes<0, 4, 5>();
    if constexpr (TB > 1) tile_load<6>(next(1, k), WINDOW), tile_dot_bytes<1, 4, 6>();
    if constexpr (TB > 2) tile_load<7>(next(2, k), WINDOW), tile_dot_bytes<2, 4, 7>();
    if constexpr (TB > 3) tile_load<5>(next(3, k), WINDOW), tile_dot_bytes<3, 4, 5>();
  }
}

static bool tile_set_few(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, int8_t* room) {
  TileSums sums;
  bool good = true;
  for (int64_t g = g0; g < g1; g += sums.groups) {
    sums.groups = g + 4 <= g1 ? 4 : 1, sums.row = g * GROUP, sums.token = s.token, sums.tokens = s.tokens, sums.done = 0;
    sums.scale = s.scale, sums.zero = s.zero;
    Panel w{};
    if (p.a.kind == INT8_DENSE) w = panel_of<TILE_QUADS>(p.a, g, sums.groups, room);
    if (sums.groups == 4) tile_few<4>(p, s.q, s.pitch, g, w, room), tile_store_all<1, 4>(sums);
    else tile_few<1>(p, s.q, s.pitch, g, w, room), tile_store_all<1, 1>(sums);
    good &= tile_put(p, sums);
  }
  return good;
}

template <int ACTIVATION> static bool tile_set(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, int8_t* room) {
  TileSums sums;
  bool good = true;
  for (int64_t g = g0; g < g1;) {
    const int64_t some = g + 2 <= g1 ? 2 : 1;
    const Panel w = panel_of<TILE_QUADS>(p.a, g, some, room);
    const bool next = p.a.kind == INT8_DENSE && g + 4 <= g1;  // there are two groups more, and they are asked for
    const int64_t pairs = (s.tokens + 31) / 32, lines = next ? (2 * TILE_QUADS + pairs - 1) / pairs : 0;
    const int8_t* ahead = w.v + 2 * w.pitch;
    for (int64_t t = 0; t < s.tokens;) {
      const int64_t left = s.tokens - t, tall = left > 16 ? 2 : 1;
      const uint8_t* q = s.q + t * s.pitch;
      if (some == 2 && tall == 2) tile_block<2, 2, ACTIVATION>(p, q, s.pitch, w, sums, ahead, lines), tile_store_all<2, 2>(sums);
      else if (some == 2) tile_block<1, 2, ACTIVATION>(p, q, s.pitch, w, sums, ahead, lines), tile_store_all<1, 2>(sums);
      else if (tall == 2) tile_block<2, 1, ACTIVATION>(p, q, s.pitch, w, sums, ahead, lines), tile_store_all<2, 1>(sums);
      else tile_block<1, 1, ACTIVATION>(p, q, s.pitch, w, sums, ahead, lines), tile_store_all<1, 1>(sums);
      sums.token = s.token + t, sums.row = g * GROUP, sums.groups = some, sums.tokens = left < 16 * tall ? left : 16 * tall;
      sums.scale = s.scale + t, sums.zero = s.zero + t, sums.done = 0;
      if (p.out_type != NUMBER_FLOAT || p.plane || (g + some) * GROUP > p.a.rows) good &= tile_put(p, sums);
      t += sums.tokens;
    }
    g += some;
  }
  return tile_put(p, sums) && good;
}

static bool by_tiles(const Int8Product& p) {
  return (p.a.kind == INT8_DENSE || p.a.kind == INT8_BITMAP) && p.a.cols > 0;
}

// Bytes of room for the values of the groups that are worked on at once.
static int64_t tile_room(const Int8Weight& a) { return 4 * tile_blocks(a) * TILE_BYTES; }

static bool tile_any(const Int8Product& p, const Set& s, int64_t g0, int64_t g1, int8_t* room) {
  tiles_begin(shapes_of(s.tokens));
  bool good;
  if (s.tokens <= 16) good = tile_set_few(p, s, g0, g1, room);
  else if (p.activation == RELU) good = tile_set<RELU>(p, s, g0, g1, room);
  else if (p.activation == GELU) good = tile_set<GELU>(p, s, g0, g1, room);
  else if (p.activation == SILU) good = tile_set<SILU>(p, s, g0, g1, room);
  else good = tile_set<NONE>(p, s, g0, g1, room);
  tiles_end();
  return good;
}
