// Attention where a mask has entries: softmax(scale Q K^T) V with one pass over the keys, for 16-bit Q, K, V.
//
// The mask is a list of tiles of ROWS queries x 64 keys that have an entry, with 64 bits for each row of a tile. A block
// has ROWS queries of one head, a warp 16 HIGH of them, and walks the tiles of these queries: products by dense
// mma.sync, a running maximum and sum for each row (online softmax). Sums of scores begin with minus infinity where the
// mask has no entry. K and V of the next tile are copied while one is computed. If there are fewer blocks than fit on
// the GPU, the tiles of a block are divided among several, and a second kernel combines their results.
//
// Floor for 8,192 tokens, one head of 64, all tiles present: 17 GFLOP at the 505 TFLOPS of mma.sync are 34 us; the
// exponentials, 16 a clock and SM, are 18 us. Walking single entries instead (SDDMM, softmax, SpMM) reads 860 MB of K
// and V from the L2 cache at a density of 5 %: 150 us. With HIGH = 1 all warps read K and V from shared memory for 16
// rows each, which takes 512 clocks a tile, as long as its products: 1.43 ms for 16 heads with all tiles present.
#include "numbers.cuh"

#ifndef WIDTH
#define WIDTH 64  // of a head: a multiple of 16, up to 128
#endif
#ifndef HIGH
#define HIGH 1  // groups of 16 queries of a warp: what it reads of K and V serves them all
#endif
#ifndef PARTS
#define PARTS 0  // are the results those of parts of the tiles, to be combined?
#endif

constexpr int ROWS = 64 * HIGH, KEYS = 64;
constexpr int LINE = WIDTH * 2 + 16;  // bytes of a row in shared memory: an odd number of 16-byte chunks, so no conflicts
constexpr int TILE = KEYS * LINE;
constexpr int STEPS = WIDTH / 16, COLUMNS = WIDTH / 8;

struct Places {  // of queries, keys and values: elements from one row to the next, and from one head to the next
  i64 q_row, q_head, k_row, k_head, v_row, v_head;
};

extern __shared__ __align__(1024) unsigned char memory[];

__device__ __forceinline__ void fetch(unsigned to, const Element* from, i64 row, int keys) {
  constexpr int CHUNKS = WIDTH / 8;
  for (int c = threadIdx.x; c < KEYS * CHUNKS; c += 128) {
    const int key = c / CHUNKS, chunk = c % CHUNKS;
    const int there = key < keys ? 16 : 0;  // zeros beyond the last key: a score of 0, which the mask leaves out
    copy16<false>(to + key * LINE + chunk * 16, from + (there ? key : 0) * row + chunk * 8, there);
  }
}

__device__ __forceinline__ float over_quad(float mine, bool largest) {
#pragma unroll
  for (int by = 1; by < 4; by *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, mine, by);
    mine = largest ? fmaxf(mine, other) : mine + other;
  }
  return mine;
}

// One over the sum of a row: 0 for a row without entries, NaN for NaN.
__device__ __forceinline__ float inverse(float total) { return total > 0.f ? 1.f / total : total == total ? 0.f : total; }

extern "C" __global__ void __launch_bounds__(128, HIGH > 1 || WIDTH > 64 ? 2 : 3)
attend(const Element* q, const Element* k, const Element* v, Places at, const int* first, const int* column,
       const u64* bits, Element* out, float* part, float* tops, float* sums, int queries, int keys, float scale) {
  const float NONE = __int_as_float(0xff800000);  // minus infinity
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int block = blockIdx.x, split = blockIdx.y, splits = gridDim.y, head = blockIdx.z;
  const int all = first[block + 1] - first[block];
  const int begin = first[block] + int(i64(all) * split / splits), end = first[block] + int(i64(all) * (split + 1) / splits);
  const unsigned base = (unsigned)__cvta_generic_to_shared(memory);
  const Element* own_k = k + head * at.k_head;
  const Element* own_v = v + head * at.v_head;
  const int inside = warp * 16 * HIGH + g;  // this thread has rows inside + 8 n of the block

  unsigned a[HIGH][STEPS][4];
#pragma unroll
  for (int m = 0; m < HIGH; ++m)
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = block * ROWS + inside + 16 * m + i % 2 * 8;
        const Element* from = q + head * at.q_head + i64(r) * at.q_row + s * 16 + i / 2 * 8 + t * 2;
        a[m][s][i] = r < queries ? *(const unsigned*)from : 0u;
      }

  float o[HIGH][COLUMNS][4] = {};
  float top[HIGH][2], sum[HIGH][2];
#pragma unroll
  for (int m = 0; m < HIGH; ++m) top[m][0] = top[m][1] = NONE, sum[m][0] = sum[m][1] = 0.f;
  if (begin < end) {
    const i64 key = i64(column[begin]) * KEYS;
    fetch(base, own_k + key * at.k_row, at.k_row, int(keys - key));
    fetch(base + TILE, own_v + key * at.v_row, at.v_row, int(keys - key));
  }
  mark_copies();
  for (int tile = begin; tile < end; ++tile) {
    const int stage = (tile - begin) & 1;
    float s[HIGH][8][4];
#pragma unroll
    for (int m = 0; m < HIGH; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u64 kept = bits[i64(tile) * ROWS + inside + 16 * m + 8 * h] >> (2 * t);
        const unsigned words[2] = {unsigned(kept), unsigned(kept >> 32)};
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) s[m][j][2 * h + e] = words[j / 4] & 1u << (j % 4 * 8 + e) ? 0.f : NONE;
      }
    if (tile + 1 < end) {
      const i64 key = i64(column[tile + 1]) * KEYS;
      const unsigned to = base + (stage ^ 1) * 2 * TILE;
      fetch(to, own_k + key * at.k_row, at.k_row, int(keys - key));
      fetch(to + TILE, own_v + key * at.v_row, at.v_row, int(keys - key));
    }
    mark_copies();
    wait_for_groups<1>();
    __syncthreads();
    const unsigned at_k = base + stage * 2 * TILE, at_v = at_k + TILE;

#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];  // keys 8 j .. 8 j + 15, 16 columns
        ldmatrix(b, at_k + (8 * j + lane / 16 * 8 + lane % 8) * LINE + (2 * step + lane / 8 % 2) * 16);
#pragma unroll
        for (int m = 0; m < HIGH; ++m) mma(s[m][j], a[m][step], b[0], b[1]), mma(s[m][j + 1], a[m][step], b[2], b[3]);
      }

#pragma unroll
    for (int m = 0; m < HIGH; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float highest = top[m][h];
#pragma unroll
        for (int j = 0; j < 8; ++j) highest = fmaxf(highest, fmaxf(s[m][j][2 * h], s[m][j][2 * h + 1]));
        highest = over_quad(highest, true);
        const float less = highest == NONE ? 0.f : highest * scale;
        const float again = exp2_of(top[m][h] * scale - less);  // 0 for the first entry of a row
        top[m][h] = highest;
        sum[m][h] *= again;
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float p = exp2_of(s[m][j][2 * h + e] * scale - less);
            sum[m][h] += p;
            s[m][j][2 * h + e] = p;
          }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) o[m][c][2 * h] *= again, o[m][c][2 * h + 1] *= again;
      }

#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      unsigned p[HIGH][4];  // keys 8 j .. 8 j + 15
#pragma unroll
      for (int m = 0; m < HIGH; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[m][i] = pack2(s[m][j + i / 2][i % 2 * 2], s[m][j + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int c = 0; c < COLUMNS; c += 2) {
        unsigned b[4];  // the same keys, columns 8 c .. 8 c + 15
        ldmatrix_turned(b, at_v + (8 * j + lane % 16) * LINE + (c + lane / 16) * 16);
#pragma unroll
        for (int m = 0; m < HIGH; ++m) mma(o[m][c], p[m], b[0], b[1]), mma(o[m][c + 1], p[m], b[2], b[3]);
      }
    }
    __syncthreads();  // before the next copies
  }
  wait_for_copies();

#pragma unroll
  for (int m = 0; m < HIGH; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = block * ROWS + inside + 16 * m + 8 * h;
      const float total = over_quad(sum[m][h], false);
      if (r >= queries) continue;
      const i64 place = i64(PARTS ? split * gridDim.z + head : head) * queries + r;
      const float by = PARTS ? 1.f : inverse(total);
      if (PARTS && t == 0) tops[place] = top[m][h] * scale, sums[place] = total;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const float x = o[m][c][2 * h] * by, y = o[m][c][2 * h + 1] * by;
        if (PARTS)
          *(float2*)(part + place * WIDTH + c * 8 + t * 2) = float2{x, y};
        else
          *(unsigned*)(out + place * WIDTH + c * 8 + t * 2) = pack2(x, y);
      }
    }
}

// The results of parts of the tiles as one: a thread has two columns of a row.
extern "C" __global__ void __launch_bounds__(128)
combine(const float* part, const float* tops, const float* sums, Element* out, i64 rows, int splits) {
  const i64 place = i64(blockIdx.x) * 128 + threadIdx.x, row = place / (WIDTH / 2), column = place % (WIDTH / 2) * 2;
  if (row >= rows) return;
  float top = __int_as_float(0xff800000);
  for (int s = 0; s < splits; ++s) top = fmaxf(top, tops[s * rows + row]);
  if (top == __int_as_float(0xff800000)) top = 0.f;
  float total = 0.f;
  float2 o = {0.f, 0.f};
  for (int s = 0; s < splits; ++s) {
    const float weight = exp2_of(tops[s * rows + row] - top);
    const float2 mine = *(const float2*)(part + (s * rows + row) * WIDTH + column);
    total += weight * sums[s * rows + row];
    o.x += weight * mine.x, o.y += weight * mine.y;
  }
  const float by = inverse(total);
  *(unsigned*)(out + row * WIDTH + column) = pack2(o.x * by, o.y * by);
}
