// 4 of every GROUP columns for each block of rows, and for each row the largest 2 of these 4, of many arrays in one launch:
// V:N:M masks and sparse weights from dense ones, after a step of a straight-through method. GROUP is 5 to 32.
//
// A block row (blockIdx.y) has an array. A block of threads has a unit at a time: GROUP columns of the rows that share them.
// It tries every set of 4 columns i < j < k < l. The host lists items: (i, j, k) and CHUNK neighbouring l. A thread takes an
// item; with t the largest and u the second of three values, a row adds t + max(u, x) to the sum of the set that x completes.
// Where there are fewer items than threads, PHASES groups of threads share the rows. So a sum is added in this order: rows
// p, p + PHASES, p + 2 PHASES ... for each phase p, then the phases from 0 on, in float32 (float64 for float64 weights).
// Of equal sums the set that comes first in lexicographic order wins. Of a row's equal magnitudes the first stays.
// A unit with a NaN is left as it was, and *wrong becomes 1. Infinite magnitudes count as the largest number / 2^24 in sums.
//
// Floor: C(GROUP, 4) * 3 operations per row and group, of which two are maxima (half rate): for 2:8 and a model of 19 M
// weights 0.5 G operations, and 9 bytes per float32. No launch depends on another, and nothing is kept between blocks.
#include "numbers.cuh"

#if ITEM == 2
typedef u16 Bits;
typedef float Number;
#elif ITEM == 4
typedef u32 Bits;
typedef float Number;
#else
typedef u64 Bits;
typedef double Number;
#endif

constexpr int ARRAYS = 64, THREADS = 256, LINE = (GROUP + CHUNK - 1) / CHUNK * CHUNK;
constexpr int ROWS = 16384 / (LINE * int(sizeof(Number)));  // in shared memory at a time
constexpr int PHASES = ITEMS < THREADS ? THREADS / ITEMS : 1, AT_ONCE = ITEMS < THREADS ? ITEMS : THREADS;
constexpr Bits MAGNITUDE = Bits(~Bits(0)) >> 1;

struct Table {
  const Bits* dense[ARRAYS];
  Bits* sparse[ARRAYS];
  u8* mask[ARRAYS];
  i64 rows[ARRAYS], groups[ARRAYS], height[ARRAYS];
};
struct alignas(16) Chunk {
  Number e[CHUNK];
};
struct Memory {
  Number line[ROWS][LINE];
  Chunk part[THREADS];
  Number best[THREADS];
  u32 set[THREADS];
  int bad;
};

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float smaller(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ double smaller(double a, double b) { return fmin(a, b); }

__device__ __forceinline__ Number number_of(Bits magnitude) {  // finite, so that sums are
#if ITEM == 8
  return fmin(__longlong_as_double(i64(magnitude)), 0x1.fffffffffffffp999);
#elif ITEM == 4
  return fminf(__int_as_float(int(magnitude)), 0x1.fffffep103f);
#else
  return fminf(widen(magnitude), 0x1.fffffep103f);
#endif
}

// Rows of a unit into shared memory; zeros where a line is longer than GROUP.
__device__ __forceinline__ void bring(Memory& memory, const Bits* from, i64 columns, int rows, Bits infinity) {
  for (int i = threadIdx.x; i < rows * LINE; i += THREADS) {
    const int row = i / LINE, column = i % LINE;
    Bits magnitude = 0;
    if (column < GROUP) magnitude = from[row * columns + column] & MAGNITUDE;
    if (magnitude > infinity) memory.bad = 1;
    memory.line[row][column] = number_of(magnitude);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    choose_shared(const __grid_constant__ Table table, const u32* items, Bits infinity, int* wrong) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Memory& my = *reinterpret_cast<Memory*>(memory);
  const i64 rows = table.rows[blockIdx.y], groups = table.groups[blockIdx.y], height = table.height[blockIdx.y];
  const i64 columns = groups * GROUP, units = (rows + height - 1) / height * groups;
  const int phase = threadIdx.x / AT_ONCE, place = threadIdx.x % AT_ONCE;
  for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const i64 first = unit / groups * height, start = first * columns + unit % groups * GROUP;
    const i64 count = min(height, rows - first);
    const Bits* const dense = table.dense[blockIdx.y] + start;
    Number best = -1;
    u32 set = 0;
    if (!threadIdx.x) my.bad = 0;
    __syncthreads();
    for (int before = 0; before < ITEMS; before += AT_ONCE) {
      const int mine = before + place;
      const bool busy = phase < PHASES && mine < ITEMS;
      const u32 item = busy ? items[mine] : 0;
      const int i = item >> 24, j = item >> 16 & 255, k = item >> 8 & 255, l = item & 255;
      Chunk sum{};
      for (i64 row = 0; row < count; row += ROWS) {
        const int here = int(min(i64(ROWS), count - row));
        if (!before || count > ROWS) {  // else they are still there
          __syncthreads();
          bring(my, dense + row * columns, columns, here, infinity);
          __syncthreads();
        }
        if (busy)
#pragma unroll 4
          for (int r = phase; r < here; r += PHASES) {
            const Number* const line = my.line[r];
            const Number a = line[i], b = line[j], c = line[k], high = larger(a, b);
            const Number top = larger(high, c), middle = larger(smaller(a, b), smaller(high, c));
            const Chunk x = *reinterpret_cast<const Chunk*>(line + l);
#pragma unroll
            for (int e = 0; e < CHUNK; e++) sum.e[e] += top + larger(middle, x.e[e]);
          }
      }
      if (PHASES > 1) {
        my.part[threadIdx.x] = sum;
        __syncthreads();
        for (int p = 1; p < PHASES && !phase; p++)
#pragma unroll
          for (int e = 0; e < CHUNK; e++) sum.e[e] += my.part[p * AT_ONCE + place].e[e];
      }
      if (busy && !phase)
#pragma unroll
        for (int e = 0; e < CHUNK; e++)
          if (l + e > k && l + e < GROUP && sum.e[e] > best) best = sum.e[e], set = item + e;
    }
    my.best[threadIdx.x] = best, my.set[threadIdx.x] = set;
    for (int half = THREADS / 2; half; half /= 2) {
      __syncthreads();
      const int other = threadIdx.x + half;
      if (threadIdx.x >= half) continue;
      const bool better = my.best[other] > best || (my.best[other] == best && my.set[other] < set);
      if (better) my.best[threadIdx.x] = best = my.best[other], my.set[threadIdx.x] = set = my.set[other];
    }
    __syncthreads();
    if (my.bad) {
      if (!threadIdx.x) *wrong = 1;
    } else {
      set = my.set[0];
      Bits* const sparse = table.sparse[blockIdx.y] + start;
      u8* const mask = table.mask[blockIdx.y] + start;
      for (int at = threadIdx.x; at < int(count) * GROUP; at += THREADS) {
        const int column = at % GROUP;
        const i64 line = at / GROUP * columns;
        const Bits held = dense[line + column], magnitude = held & MAGNITUDE;
        bool shared = false;
        int beaten = 0;
#pragma unroll
        for (int s = 0; s < 32; s += 8) {
          const int other = int(set >> s & 255);
          shared = shared || other == column;
        }
        if (shared)
#pragma unroll
          for (int s = 0; s < 32; s += 8) {
            const int other = int(set >> s & 255);
            const Bits against = dense[line + other] & MAGNITUDE;
            beaten += other < column ? against >= magnitude : other > column && against > magnitude;
          }
        const bool kept = shared && beaten < 2;
        sparse[line + column] = kept ? held : Bits(0);
        mask[line + column] = kept;
      }
    }
    __syncthreads();
  }
}
