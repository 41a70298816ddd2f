// The COUNTS[r] largest magnitudes of many arrays, for one or two numbers r at once: masks, and sparse weights of the first.
// For straight-through methods with a sparsity. Of equal magnitudes the lower index stays, so that the result is the same
// on every machine; it depends on integers only. A block row (blockIdx.y) has an array, a block a span of it.
//
// The last magnitude that is kept is found by its bits, DIGIT at a time, highest first: `top_digits` counts the values of the
// next bits among all magnitudes whose higher bits are those found so far (PASS 0, 1, ...). `top_ties` counts, span by span, the
// magnitudes that equal the last one, and `top_write` writes. Each kernel reads the counts of the one before, so what is found
// never goes to the host. An array with a NaN is left as it was, and *wrong becomes 1.
//
// Floor: PASSES + 2 reads of all weights and one write with a byte of mask each: 29 bytes of a float32.
#include "numbers.cuh"

#if ITEM == 2
typedef u16 Bits;
#elif ITEM == 4
typedef u32 Bits;
#else
typedef u64 Bits;
#endif

constexpr int ARRAYS = 32, SPANS = 1024, THREADS = 256, DIGIT = 11, BINS = 1 << DIGIT, WIDTH = ITEM * 8 - 1;
constexpr int PASSES = (WIDTH + DIGIT - 1) / DIGIT, EACH = BINS / THREADS;
constexpr Bits MAGNITUDE = Bits(~Bits(0)) >> 1;

__device__ constexpr int below(int pass) {  // bits below the digit of a pass
  return WIDTH - (pass + 1) * DIGIT > 0 ? WIDTH - (pass + 1) * DIGIT : 0;
}

struct Table {
  const Bits* dense[ARRAYS];
  Bits* sparse[ARRAYS];  // none: only masks
  u8* mask[ARRAYS];
  u8* wider[ARRAYS];  // the mask of the second number
  i64 size[ARRAYS], span[ARRAYS], count[ARRAYS], second[ARRAYS];
};

struct Found {
  u64 bits;  // of the last magnitude that is kept, the higher ones, at their place
  i64 left;  // how many of those that begin with these bits are kept
};

// All are zero at first.
struct Work {
  u32 seen[PASSES][ARRAYS][RANKS][BINS];
  Found found[PASSES + 1][ARRAYS][RANKS];
  u32 ties[ARRAYS][RANKS][SPANS];
  u32 nan[ARRAYS];
};

struct Memory {
  u32 seen[RANKS][BINS];
  u32 sum[THREADS];
  Found found[RANKS];
  i64 cut[RANKS];
};

// What is known of each number before a pass, for all threads.
__device__ __forceinline__ void settle(Memory& my, const Table& table, Work* work, int pass) {
  for (int r = 0; r < RANKS; r++) {
    if (!pass) {
      if (!threadIdx.x) my.found[r] = {0, r ? table.second[blockIdx.y] : table.count[blockIdx.y]};
      __syncthreads();
      continue;
    }
    const u32* const seen = work->seen[pass - 1][blockIdx.y][pass == 1 ? 0 : r];  // the first digits are those of both
    const Found before = pass == 1 ? Found{0, r ? table.second[blockIdx.y] : table.count[blockIdx.y]}
                                   : work->found[pass - 1][blockIdx.y][r];
    const int digit = below(pass - 1), most = (1 << (pass < PASSES || !(WIDTH % DIGIT) ? DIGIT : WIDTH % DIGIT)) - 1;
    u32 mine[EACH], sum = 0;
    for (int e = 0; e < EACH; e++) sum += mine[e] = seen[threadIdx.x * EACH + e];
    my.sum[threadIdx.x] = sum;
    if (!threadIdx.x) my.found[r] = {before.bits | u64(most) << digit, 0};  // if none is kept
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {  // how many are in the bins of this and all later threads
      const u32 more = threadIdx.x + step < THREADS ? my.sum[threadIdx.x + step] : 0;
      __syncthreads();
      my.sum[threadIdx.x] += more;
      __syncthreads();
    }
    i64 above = i64(my.sum[threadIdx.x]) - sum;
    for (int e = EACH - 1; e >= 0; e--) {
      if (above < before.left && before.left <= above + mine[e])
        my.found[r] = {before.bits | u64(threadIdx.x * EACH + e) << digit, before.left - above};
      above += mine[e];
    }
    __syncthreads();
    if (!blockIdx.x && !threadIdx.x) work->found[pass][blockIdx.y][r] = my.found[r];
  }
}

extern "C" __global__ void __launch_bounds__(256) top_digits(const __grid_constant__ Table table, Work* work, Bits infinity, int pass) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Memory& my = *reinterpret_cast<Memory*>(memory);
  const i64 size = table.size[blockIdx.y], first = blockIdx.x * table.span[blockIdx.y];
  if (first >= size) return;
  const Bits* const dense = table.dense[blockIdx.y];
  const i64 end = min(size, first + table.span[blockIdx.y]);
  settle(my, table, work, pass);
  for (int i = threadIdx.x; i < RANKS * BINS; i += THREADS) (&my.seen[0][0])[i] = 0;
  const int digit = below(pass), known = pass ? below(pass - 1) : 0;
  const u32 bins = (u32(1) << (pass + 1 < PASSES || !(WIDTH % DIGIT) ? DIGIT : WIDTH % DIGIT)) - 1;
  Bits want[RANKS];
  for (int r = 0; r < RANKS; r++) want[r] = Bits(my.found[r].bits >> known);
  __syncthreads();
  bool number = true;
#pragma unroll 8
  for (i64 i = first + threadIdx.x; i < end; i += THREADS) {
    const Bits magnitude = dense[i] & MAGNITUDE;
    number = number && magnitude <= infinity;
    if (!pass) atomicAdd(&my.seen[0][u32(magnitude >> digit) & bins], 1u);
    for (int r = 0; r < RANKS && pass; r++)
      if (Bits(magnitude >> known) == want[r]) atomicAdd(&my.seen[r][u32(magnitude >> digit) & bins], 1u);
  }
  if (!number) work->nan[blockIdx.y] = 1;
  __syncthreads();
  for (int i = threadIdx.x; i < RANKS * BINS; i += THREADS)
    if (const u32 some = (&my.seen[0][0])[i]) atomicAdd(&work->seen[pass][blockIdx.y][0][0] + i, some);
}

extern "C" __global__ void __launch_bounds__(256) top_ties(const __grid_constant__ Table table, Work* work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Memory& my = *reinterpret_cast<Memory*>(memory);
  const i64 size = table.size[blockIdx.y], first = blockIdx.x * table.span[blockIdx.y];
  if (first >= size) return;
  const Bits* const dense = table.dense[blockIdx.y];
  const i64 end = min(size, first + table.span[blockIdx.y]);
  settle(my, table, work, PASSES);
  u32 equal[RANKS] = {};
#pragma unroll 8
  for (i64 i = first + threadIdx.x; i < end; i += THREADS) {
    const Bits magnitude = dense[i] & MAGNITUDE;
    for (int r = 0; r < RANKS; r++) equal[r] += magnitude == Bits(my.found[r].bits);
  }
  for (int r = 0; r < RANKS; r++)
    if (equal[r]) atomicAdd(&work->ties[blockIdx.y][r][blockIdx.x], equal[r]);
}

// The index up to which magnitudes that equal the last one are kept.
__device__ __forceinline__ void find_cut(Memory& my, Work* work, const Bits* dense, i64 first, i64 end) {
  for (int r = 0; r < RANKS; r++) {
    const Found last = work->found[PASSES][blockIdx.y][r];
    const u32* const ties = work->ties[blockIdx.y][r];
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < blockIdx.x; i += THREADS) sum += ties[i];
    my.sum[threadIdx.x] = sum;
    for (int half = THREADS / 2; half; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) my.sum[threadIdx.x] += my.sum[threadIdx.x + half];
    }
    __syncthreads();
    const i64 room = last.left - my.sum[0], here = ties[blockIdx.x];
    __syncthreads();
    if (!threadIdx.x) my.found[r] = last, my.cut[r] = room <= 0 ? first : end;
    if (room > 0 && room < here) {  // in one span of an array at most: each thread counts a part of it
      const i64 part = (end - first + THREADS - 1) / THREADS, from = first + threadIdx.x * part, to = min(end, from + part);
      u32 mine = 0;
      for (i64 i = from; i < to; i++) mine += (dense[i] & MAGNITUDE) == Bits(last.bits);
      my.sum[threadIdx.x] = mine;
      __syncthreads();
      i64 before = 0;
      for (int t = 0; t < threadIdx.x; t++) before += my.sum[t];
      if (before < room && room <= before + mine)
        for (i64 i = from; i < to; i++)
          if ((dense[i] & MAGNITUDE) == Bits(last.bits) && ++before == room) my.cut[r] = i + 1;
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(256) top_write(const __grid_constant__ Table table, Work* work, int* wrong) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Memory& my = *reinterpret_cast<Memory*>(memory);
  const i64 size = table.size[blockIdx.y], first = blockIdx.x * table.span[blockIdx.y];
  if (first >= size) return;
  if (work->nan[blockIdx.y]) {
    if (!threadIdx.x) *wrong = 1;
    return;
  }
  const Bits* const dense = table.dense[blockIdx.y];
  const i64 end = min(size, first + table.span[blockIdx.y]);
  find_cut(my, work, dense, first, end);
  Bits* const sparse = table.sparse[blockIdx.y];
#pragma unroll 8
  for (i64 i = first + threadIdx.x; i < end; i += THREADS) {
    const Bits held = dense[i], magnitude = held & MAGNITUDE;
    bool kept[RANKS];
    for (int r = 0; r < RANKS; r++) {
      const Bits last = Bits(my.found[r].bits);
      kept[r] = magnitude > last || (magnitude == last && i < my.cut[r]);
    }
    if (sparse) sparse[i] = kept[0] ? held : Bits(0);
    table.mask[blockIdx.y][i] = kept[0];
    if (RANKS > 1) table.wider[blockIdx.y][i] = kept[RANKS - 1];
  }
}
