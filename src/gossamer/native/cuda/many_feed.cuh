// vnm_many.cu and vnm_some.cu: the threads that bring W and X into the ring.
#pragma once
#include "many_tiles.cuh"

// The values and metadata of a step: those of a tile's rows lie one after the other, for small bulk copies
// are slow. `more` bytes of X come with them.
__device__ __forceinline__ void fetch_w(const Problem& p, const Second& second, unsigned smem, int tile_m, int step, int slot, int more) {
  int all = (p.rows + 63) / 64, first = first_block(tile_m), blocks = blocks_of(p, tile_m);
  unsigned bar = full_bar(smem, slot), values = smem + SMEM_A + slot * A_BYTES, meta = smem + SMEM_META + slot * META_BYTES;
  expect_tx(bar, (GATED ? 2 : 1) * blocks * (4096 + META) + more);
  long long at = (long long)step * all + first;
  bulk_copy(values, p.values + at * 4096, blocks * 4096, bar);
  bulk_copy(meta, p.meta + at * META, blocks * META, bar);
#if GATED
  bulk_copy(values + SPAN * 4096, second.values + at * 4096, blocks * 4096, bar);
  bulk_copy(meta + SPAN * META, second.meta + at * META, blocks * META, bar);
#endif
}

#if GATHER
constexpr int CHUNKS = BN / 8;  // of 16 bytes in a row of X
constexpr int PER = 64 * CHUNKS / FEEDERS;  // that a thread fetches

// The rows of X that 64 compacted columns need, BN tokens wide. Few warps issue all copies of a block, so each instruction
// between two copies counts: the addresses of a step are made before its buffer is free, if there are registers for them.
constexpr bool EARLY = PER <= 8;

struct Feeder {
  const char* from;      // of this thread in the next step
  const char* at;        // in this step
  const char* src[EARLY ? PER : 1];
  unsigned cols[PER / 4];  // positions of the shared columns
  unsigned to;           // in the buffer
  int first;             // row that this thread begins with

  __device__ __forceinline__ void begin(const Problem& p, int n0) {
    int chunk = threadIdx.x % CHUNKS;
    first = threadIdx.x / CHUNKS * PER;
    from = p.x + (long long)(first / 4 * p.m) * p.ldx + (n0 + chunk * 8) * 2ll;
    to = (chunk >> 3) * 8192 + first * 128 + (((chunk ^ first) & 7) << 4);
    settle(from, to);  // computed once
  }

  __device__ __forceinline__ const char* address(const Problem& p, int i) const {
    unsigned pos = __byte_perm(cols[i / 4], 0, 0x4440 + i % 4);
    return at + (long long)(i / 4) * (p.m * p.ldx) + (unsigned long long)pos * (unsigned)p.ldx;
  }

  // The addresses of the next step.
  __device__ __forceinline__ void aim(const Problem& p, unsigned list, int step) {
    at = from;
#pragma unroll
    for (int four = 0; four < PER / 4; ++four) cols[four] = lds32(list + step * 64 + first + four * 4);
    from += 16ll * p.m * p.ldx;
    if (EARLY)
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        src[i] = address(p, i);
        settle(src[i]);
      }
  }

  __device__ __forceinline__ const char* source(const Problem& p, int i) const { return EARLY ? src[EARLY ? i : 0] : address(p, i); }

  __device__ __forceinline__ unsigned place(unsigned dst, int i) const { return ((dst + to) ^ (i % 8 << 4)) + i * 128; }

  __device__ __forceinline__ void copy(const Problem& p, unsigned dst) const {
#pragma unroll
    for (int i = 0; i < PER; ++i) copy16<true>(place(dst, i), source(p, i), 16);
  }

  // Where the tile or the step reaches beyond X: zeros.
  __device__ __forceinline__ void copy_edge(const Problem& p, unsigned dst, unsigned list, int n0, int step) const {
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      int pos = lds8(list + step * 64 + first + i);
      bool in = (step * 16 + (first + i) / 4) * p.m + pos < p.k;
      int bytes = in ? (p.tokens - n0 - (int)threadIdx.x % CHUNKS * 8) * 2 : 0;
      const char* line = source(p, i);
      copy16<false>(place(dst, i), bytes > 0 ? line : p.x, clamp16(bytes));
    }
  }
};

// The positions of the shared columns of a block of rows, into shared memory.
__device__ __forceinline__ void load_list(const Problem& p, unsigned list, int block) {
  sync_some<FEEDERS>(1);
  const uint4* from = (const uint4*)(p.cols + (long long)block * p.steps * 64);
  for (int i = threadIdx.x; i < p.steps * 4; i += FEEDERS) sts128(list + i * 16, __ldg(from + i));
  sync_some<FEEDERS>(1);
}

__device__ __forceinline__ void produce(const Problem& p, const Second& second, const Map&, unsigned smem) {
  Ring ring;
  unsigned list = smem + SMEM_LIST;
  int had = -1;
  Tiles tiles(p);
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
    int tile_m = tile % p.tiles_m, n0 = tile / p.tiles_m * BN;
    if (tile_m * BM / p.v != had) load_list(p, list, had = tile_m * BM / p.v);
    int whole = n0 + BN <= p.tokens ? p.k / (16 * p.m) : 0;  // steps that lie whole inside X
    Feeder feeder;
    feeder.begin(p, n0);
    feeder.aim(p, list, 0);
#pragma unroll 1
    for (int step = 0; step < p.steps; ++step) {
      wait(empty_bar(smem, ring.slot), ring.phase ^ 1);
      if (threadIdx.x == 0) fetch_w(p, second, smem, tile_m, step, ring.slot, 0);
      if (step < whole)
        feeder.copy(p, smem + ring.slot * B_BYTES);
      else
        feeder.copy_edge(p, smem + ring.slot * B_BYTES, list, n0, step);
      arrive_when_copied(full_bar(smem, ring.slot));
      ring.next();
      if (step + 1 < p.steps) feeder.aim(p, list, step + 1);
    }
  }
  wait_for_copies();
}
#elif !defined(CLUSTER)
// One thread. Boxes of X have p.lines tokens: lines of a box that lie beyond X take as long as 50 that don't, so that a tile
// asks for no more boxes than it has tokens for.
__device__ __forceinline__ void produce(const Problem& p, const Second& second, const Map& x, unsigned smem) {
  if (threadIdx.x) return;
  Ring ring;
  Tiles tiles(p);
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
    int tile_m = tile % p.tiles_m, n0 = tile / p.tiles_m * BN, boxes = (min(BN, p.tokens - n0) + p.lines - 1) / p.lines;
    const int box = (X_TOKENS ? p.lines : 64) * 128;
#pragma unroll 1
    for (int step = 0; step < p.steps; ++step) {
      wait(empty_bar(smem, ring.slot), ring.phase ^ 1);
      unsigned to = smem + ring.slot * B_BYTES, bar = full_bar(smem, ring.slot);
      fetch_w(p, second, smem, tile_m, step, ring.slot, boxes * box);
      for (int i = 0; i < boxes; ++i)
        tensor_load(to + i * box, &x, X_TOKENS ? step * 64 : n0 + i * 64, X_TOKENS ? n0 + i * p.lines : step * 64, bar);
      ring.next();
    }
  }
}
#endif
