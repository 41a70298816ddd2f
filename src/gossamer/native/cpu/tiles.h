// Tiles of AMX: eight registers of up to sixteen rows of 64 bytes, and products of two of them added to a third.
//
// This is the only file that knows the instructions. With EMULATED_TILES the same functions work on arrays, so that a
// machine without AMX runs all of the code around them; tests build it so.
#pragma once

struct alignas(64) TileShapes {  // what ldtilecfg reads
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};       // of a row
  uint8_t rows[16] = {};

  void set(int tile, int64_t count) { rows[tile] = uint8_t(count), bytes[tile] = 64; }
};

#if defined(EMULATED_TILES)

struct Tiles {
  TileShapes shapes;
  alignas(64) uint8_t data[8][16][64];
};
static thread_local Tiles tiles;

static void tiles_begin(const TileShapes& shapes) { tiles.shapes = shapes, memset(tiles.data, 0, sizeof tiles.data); }
static void tiles_end() { tiles.shapes = TileShapes(), memset(tiles.data, 0xEE, sizeof tiles.data); }
template <int N> static void tile_zero() { memset(tiles.data[N], 0, sizeof tiles.data[N]); }
template <int N> static void tile_load(const void* from, int64_t pitch) {
  for (int r = 0; r < tiles.shapes.rows[N]; r++) memcpy(tiles.data[N][r], (const uint8_t*)from + r * pitch, tiles.shapes.bytes[N]);
}
template <int N> static void tile_store(void* to, int64_t pitch) {
  for (int r = 0; r < tiles.shapes.rows[N]; r++) memcpy((uint8_t*)to + r * pitch, tiles.data[N][r], tiles.shapes.bytes[N]);
}
template <int C, int A, int B> static void tile_dot_bytes() {
  for (int m = 0; m < tiles.shapes.rows[C]; m++)
    for (int n = 0; n < 16; n++) {
      int32_t sum;
      memcpy(&sum, &tiles.data[C][m][4 * n], 4);
      for (int k = 0; k < tiles.shapes.rows[B]; k++)
        for (int i = 0; i < 4; i++) sum += int32_t(tiles.data[A][m][4 * k + i]) * int8_t(tiles.data[B][k][4 * n + i]);
      memcpy(&tiles.data[C][m][4 * n], &sum, 4);
    }
}
// As the processor: a sum of products of two numbers after the other, for whom numbers below 2^-126 are 0.
template <int C, int A, int B> static void tile_dot_halves() {
  const auto number = [](const uint8_t* at) {
    uint32_t bits = uint32_t(at[0]) << 16 | uint32_t(at[1]) << 24;
    if (!(bits & 0x7F800000)) bits &= 0x80000000;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  };
  for (int m = 0; m < tiles.shapes.rows[C]; m++)
    for (int n = 0; n < 16; n++) {
      float sum;
      memcpy(&sum, &tiles.data[C][m][4 * n], 4);
      for (int k = 0; k < tiles.shapes.rows[B]; k++)
        for (int i = 0; i < 2; i++) sum += number(&tiles.data[A][m][4 * k + 2 * i]) * number(&tiles.data[B][k][4 * n + 2 * i]);
      memcpy(&tiles.data[C][m][4 * n], &sum, 4);
    }
}

#else  // by their names: no compiler has to know them, only its assembler

INLINE void tiles_begin(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
INLINE void tiles_end() { asm volatile("tilerelease" ::: "memory"); }
template <int N> INLINE void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(N)); }
template <int N> INLINE void tile_load(const void* from, int64_t pitch) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(pitch), "i"(N) : "memory");
}
template <int N> INLINE void tile_store(void* to, int64_t pitch) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(pitch), "i"(N) : "memory");
}
template <int C, int A, int B> INLINE void tile_dot_bytes() {  // C[m][n] += A[m][4 k + i], unsigned, * B[k][4 n + i], signed
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> INLINE void tile_dot_halves() {  // C[m][n] += A[m][2 k + i] * B[k][2 n + i], bfloat16
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#endif
