// Products of lines by AMX: sixteen tokens x 32 columns, times 32 columns x sixteen rows: sixteen lines, expanded, are a tile.
//
// Floor, 16 tokens x 16 rows x 32 columns: one product of 16 cycles (a cycle for each token), two loads of 8 cycles unless a
// tile is used again: 2 x 2 tiles of sums need four loads for four products.
//
// Measured on a Xeon of 3.7 GHz, where a product takes 5.0 ns, at 50 %, us for 768x768 / 3072x768 / 768x3072 / 2048x2048:
//   16 tokens        39 / 157 / 135 / 257           the weight from the third-level cache
//   128 tokens      143 / 572 / 450 / 842           the products alone 46 / 184 / 184 / 327
//   1024 tokens    1067 / 4256 / 4628 / 6944        the products alone 370 / 1470 / 1470 / 2620
// What the time goes to, by leaving parts out (1024 tokens, 768x768, of an earlier 1180): loading tiles from the second-level
// cache 500, writing outputs 350, expanding 240; they overlap in part. Tried: asking for the tiles of the next step (5 to 25 %
// slower), for the lines of the outputs (even), vpexpandw from memory (up to 12 % slower), its mask from memory (slower), columns in
// parts of 512, so that the tiles of two groups stay in the first-level cache, with sums written between them (17 % faster with
// 512 tokens and 768 columns, 30 to 45 % slower with 2048 and 3072).

constexpr int64_t TILE_LINES = 16, TILE_VALUES = TILE_LINES * LINE;

// Registers: sums in 0 .. 3, activations in 4 (and 5), weights in the others.
static TileShapes shapes_of(int64_t tokens) {
  TileShapes s;
  for (int tile = 0; tile < 8; tile++) s.set(tile, tokens < 16 && tile < 5 ? tokens : 16);
  return s;
}

struct TileSums {
  alignas(64) float of[4][16 * 16];
};

template <int COUNT> INLINE void store_sums(TileSums& s) {
  tile_store<0>(s.of[0], 64);
  if constexpr (COUNT > 1) tile_store<1>(s.of[1], 64);
  if constexpr (COUNT > 2) tile_store<2>(s.of[2], 64);
  if constexpr (COUNT > 3) tile_store<3>(s.of[3], 64);
}

static int64_t tile_blocks(const TileRows& a) { return (a.pairs() + TILE_LINES - 1) / TILE_LINES; }

// Activations in the order of tiles: [tokens / 16][blocks][16 tokens][32 columns], with zeros behind the last column and token.
// Tiles that are read from x itself, in rows that are far apart, take up to a third longer, most with 2048 columns.
static void pack_tokens(const TileProduct& p, const TokenSet& s, Bf16* to) {
  const int64_t blocks = tile_blocks(p.a), whole = p.a.cols / LINE, left = p.a.cols % LINE;
  for (int64_t t = 0; t < (s.tokens + 15) / 16 * 16; t++) {
    const Bf16* x = s.x + t * s.ldx;
    Bf16* row = to + t / 16 * blocks * TILE_VALUES + t % 16 * LINE;
    const bool there = t < s.tokens;
    for (int64_t k = 0; k < blocks; k++, row += TILE_VALUES) {
      if (there && k < whole) {
        memcpy((void*)row, x + k * LINE, LINE * sizeof(Bf16));
        continue;
      }
      memset((void*)row, 0, LINE * sizeof(Bf16));
      if (there) memcpy((void*)row, x + k * LINE, left * sizeof(Bf16));
    }
  }
}

// The next tile of a group, at `to`; lines behind the last pair are zeros.
INLINE void expand_tile(Expanding& lines, int64_t left, Bf16* to) {
  if (left >= TILE_LINES) return expand_lines(lines, TILE_LINES, to);
  expand_lines(lines, left, to);
  memset((void*)(to + left * LINE), 0, (TILE_LINES - left) * LINE * sizeof(Bf16));
}

// Up to sixteen tokens, G groups of rows: tiles are expanded while those before them are multiplied.
template <int G> static void few_by_tiles(const TileProduct& p, const TokenSet& s, const Bf16* x, int64_t group, Bf16* room) {
  const int64_t blocks = tile_blocks(p.a), pairs = p.a.pairs();
  Expanding lines[G];
  for (int g = 0; g < G; g++) lines[g] = {p.a, group + g};
  const auto expand = [&](int64_t k) __attribute__((always_inline)) {
    for (int g = 0; g < G; g++) expand_tile(lines[g], pairs - k * TILE_LINES, room + (k % 2 * G + g) * TILE_VALUES);
  };
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  if (blocks) expand(0);
  for (int64_t k = 0; k < blocks; k++, x += TILE_VALUES) {
    if (k + 1 < blocks) expand(k + 1);
    const Bf16* w = room + k % 2 * G * TILE_VALUES;
    tile_load<4>(x, 64);
    tile_load<5>(w, 64), tile_dot_halves<0, 4, 5>();
    if constexpr (G > 1) tile_load<6>(w + TILE_VALUES, 64), tile_dot_halves<1, 4, 6>();
    if constexpr (G > 2) tile_load<7>(w + 2 * TILE_VALUES, 64), tile_dot_halves<2, 4, 7>();
    if constexpr (G > 3) tile_load<5>(w + 3 * TILE_VALUES, 64), tile_dot_halves<3, 4, 5>();
  }
  TileSums sums;
  store_sums<G>(sums);
  for (int g = 0; g < G; g++) put(p, s.token, s.tokens, group + g, sums.of[g]);
}

// Two groups of rows that are expanded into memory, a few lines at a time: vectors are idle while tiles are multiplied.
class Panel {
 public:
  // Groups [first, first + count) of the weight; `count` may be 0. Lines behind the last pair of a group must be zeros already.
  Panel(const TileRows& a, int64_t first, int64_t count, Bf16* to)
      : a_(a), next_(first), end_(first + count), left_(0), to_(to), pitch_(tile_blocks(a) * TILE_VALUES) {}
  INLINE_MEMBER void expand(int64_t count) {
    while (count > 0) {
      if (!left_) {
        if (next_ == end_ || !a_.pairs()) return;
        lines_ = {a_, next_++}, left_ = a_.pairs(), at_ = to_, to_ += pitch_;
      }
      const int64_t some = count < left_ ? count : left_;
      expand_lines(lines_, some, at_);
      at_ += some * LINE, left_ -= some, count -= some;
    }
  }

 private:
  const TileRows& a_;
  int64_t next_, end_, left_;
  Bf16 *to_, *at_ = nullptr;
  int64_t pitch_;
  Expanding lines_;
};

// TA tiles of tokens from t on, and TB groups of rows, which are in `w`; `each` lines of the next ones are expanded in each step.
template <int TA, int TB>
static void tile_block(const TileProduct& p, const TokenSet& s, const Bf16* x, int64_t t, int64_t group, const Bf16* w, Panel& next, int64_t each) {
  const int64_t blocks = tile_blocks(p.a), pitch = blocks * TILE_VALUES;
  x += t / 16 * pitch;
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int64_t k = 0; k < blocks; k++, x += TILE_VALUES, w += TILE_VALUES) {
    tile_load<4>(x, 64), tile_load<6>(w, 64);
    tile_dot_halves<0, 4, 6>();
    if constexpr (TB == 2) tile_load<7>(w + pitch, 64), tile_dot_halves<1, 4, 7>();
    if constexpr (TA == 2) tile_load<5>(x + pitch, 64), tile_dot_halves<TB, 5, 6>();
    if constexpr (TA == 2 && TB == 2) tile_dot_halves<3, 5, 7>();
    next.expand(each);
  }
  TileSums sums;
  store_sums<TA * TB>(sums);
  for (int64_t tile = 0; tile < TA; tile++, t += 16)
    for (int64_t g = 0; g < TB; g++) put(p, s.token + t, s.tokens - t < 16 ? s.tokens - t : 16, group + g, sums.of[tile * TB + g]);
}

// More than sixteen tokens.
template <int TB>
static void many_by_tiles(const TileProduct& p, const TokenSet& s, const Bf16* x, int64_t group, const Bf16* w, Panel& next) {
  const int64_t steps = (s.tokens + 31) / 32, each = (2 * TILE_LINES + steps - 1) / steps;
  int64_t t = 0;
  for (; t + 16 < s.tokens; t += 32) tile_block<2, TB>(p, s, x, t, group, w, next, each);
  if (t < s.tokens) tile_block<1, TB>(p, s, x, t, group, w, next, each);
}

static void many_groups(const TileProduct& p, const TokenSet& s, const Bf16* x, int64_t g0, int64_t g1, Bf16* room) {
  const int64_t blocks = tile_blocks(p.a), padding = blocks * TILE_LINES - p.a.pairs(), panel = 2 * blocks * TILE_VALUES;
  for (int g = 1; g <= 4 && padding; g++)
    memset((void*)(room + (g * blocks * TILE_LINES - padding) * LINE), 0, padding * LINE * sizeof(Bf16));
  const auto two = [&](int64_t g) { return g1 - g < 2 ? g1 - g : 2; };
  Panel(p.a, g0, two(g0), room).expand(2 * p.a.pairs());
  for (int64_t g = g0; g < g1; g += 2) {
    Bf16 *now = room + (g - g0) / 2 % 2 * panel, *then = room + ((g - g0) / 2 + 1) % 2 * panel;
    Panel next(p.a, g + 2 < g1 ? g + 2 : g1, g + 2 < g1 ? two(g + 2) : 0, then);
    if (g + 2 <= g1) many_by_tiles<2>(p, s, x, g, now, next);
    else many_by_tiles<1>(p, s, x, g, now, next);
    next.expand(2 * p.a.pairs());
  }
}

// Values of room that tokens in the order of tiles take.
static int64_t tiles_of_tokens(const TileRows& a, int64_t tokens) { return (tokens + 15) / 16 * tile_blocks(a) * TILE_VALUES; }

static void by_tiles(const TileProduct& p, const TokenSet& s, int64_t g0, int64_t g1, Bf16* room) {
  Bf16* x = room;
  room += tiles_of_tokens(p.a, s.tokens);
  pack_tokens(p, s, x);
  tiles_begin(shapes_of(s.tokens));
  if (s.tokens <= 16) {
    for (; g0 + 4 <= g1; g0 += 4) few_by_tiles<4>(p, s, x, g0, room);
    for (; g0 < g1; g0++) few_by_tiles<1>(p, s, x, g0, room);
  } else many_groups(p, s, x, g0, g1, room);
  tiles_end();
}
