// D = act(W X + bias) for a weight in packed V:N:M and many tokens: wgmma.sp with A in registers, on sm_90a.
//
// A block takes tiles of BM rows x BN tokens, one after the other. FEEDERS of its threads feed a ring of STAGES buffers:
// 64 compacted columns of W by bulk copies, and the rows of X that they need, gathered 16 bytes at a time by cp.async into
// 128-byte swizzled shared memory; where all columns are needed (m = 4), one thread has the copy engine bring boxes of X.
// Two warpgroups multiply, or three, W from shared memory to registers, in whose order it lies.
//
// Bounds on an H200, for a step of 64 columns: wgmma reads B again for every 64 rows, X is written, W written and read, at
// 128 bytes a cycle. That is 928 cycles for 256 rows x 128 tokens and 890 for 128 x 256, of which tensor cores need 512 at
// their peak; 1240 for 192 x 256, 7 % less for the same work. Three warpgroups have the registers for that: 160 each, for
// one fragment of W (none of its loads is hidden behind its own products, but behind those of the other two); 8 blocks of
// 64 rows become tiles of 2, 3 and 3, so that no processor has more to do than another. 2:4 took 130 us before, 124 now.
// All of it runs at the power limit: for seconds on end, cuBLAS at 1560 MHz of 1980 and 2:4 at 1410 (200 and 159 us).
// The result of 4096 x 4096 costs 5 us in any case (43 us at 2:16, 38 if nothing is stored): the copy engine alone writes
// its 33 MB in 8 us, torch's fill_ in 11.
// Tried, and slower: W straight from global memory to registers (L2 is then the bound, and its latency); pairs of blocks
// that share W by multicast (no change), or X (1.8 times as long); bulk copies of 4 KB of W (30 % slower: hence the
// order of the values); results through shared memory and one bulk copy a row (the copies are too small); arriving at
// barriers after cp.async.wait_group and a proxy fence in the feeding threads (the fence waits for all copies in flight);
// tiles of 256 x 176; three warpgroups with gathered columns (128 threads are too few to gather 256 tokens: 79.6 us for
// 76.8 at 2:8); a warpgroup two or four steps ahead of the other, so that one stores while the other multiplies (the ring
// is then too short: 0 to 2 % slower, and 3 % faster at 2:100); two blocks a processor of 128 x 128 (29.5 us for 26.8 at
// 2:32); three or four buffers of results for two (no change); every warp sending its own (1 to 3 % slower, but where there
// is one buffer only, 1 % faster).
//
// Macros: ELEMENT (0 float16, 1 bfloat16), WM x WN warpgroups of MT x 64 rows and NB tokens (2 NB where they are three),
// FEEDERS (128 or 256; NB = 256 leaves registers for 128 only; GATHER = 0 needs no more than 128), STAGES, OUT (blocks of
// 64 x 64 results that a warpgroup has on their way; 0: it stores from registers), BOX (lines of a block that leave
// together: 64, or 16 where there is one buffer and D is feature-major), GATHER (0: all columns, m = 4), X_TOKENS (1: X is
// token-major; GATHER = 0 only), Y_TOKENS (1: D is token-major), ACT (0 none, 1 relu, 2 gelu, 3 silu).
#include "tensor_cores.cuh"
#include "wgmma.cuh"

#define BM (64 * MT * WM)
#define CONSUMERS (WM * WN)
#define MIXED (CONSUMERS == 3)  // tiles of two heights
#define NP (MIXED ? 2 : 1)      // times NB tokens of a warpgroup
#define BN (NB * NP * WN)

constexpr int B_BYTES = BN * 128;
constexpr int A_BYTES = BM * 64;
constexpr int META_BYTES = BM * 8;
constexpr int BLOCK = 8192;  // bytes of 64 x 64 results
constexpr int SMEM_A = STAGES * B_BYTES + CONSUMERS * OUT * BLOCK;
constexpr int SMEM_META = SMEM_A + STAGES * A_BYTES;
constexpr int SMEM_BAR = SMEM_META + STAGES * META_BYTES;
[[maybe_unused]] constexpr int SMEM_LIST = SMEM_BAR + 16 * STAGES;  // 64 bytes a step

struct Ring {
  int slot = 0, phase = 0;
  __device__ void next() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
};

struct Problem {
  const char* values;
  const char* meta;
  const unsigned char* cols;
  const char* x;
  char* y;
  const Element* bias;
  int rows, k, m, v;       // v: rows that share columns
  int tokens, steps;       // steps of 64 compacted columns
  int ldx, ldy;            // bytes from one row of x or y to the next
  int tiles_m, tiles_n;
};

struct alignas(64) Map {  // of a matrix, for copies by the copy engine: written by the driver
  unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned full_bar(unsigned smem, int slot) { return smem + SMEM_BAR + slot * 8; }
__device__ __forceinline__ unsigned empty_bar(unsigned smem, int slot) { return smem + SMEM_BAR + (STAGES + slot) * 8; }

// The tiles of a block: first, first + stride, ... before end. Where heights are mixed a block takes neighbours, so that
// all blocks have as many tiles of each height.
struct Tiles {
  int first, stride, end;

  __device__ __forceinline__ Tiles(const Problem& p) {
    long long all = p.tiles_m * p.tiles_n;
    first = MIXED ? all * blockIdx.x / gridDim.x : blockIdx.x;
    stride = MIXED ? 1 : gridDim.x;
    end = MIXED ? all * (blockIdx.x + 1) / gridDim.x : all;
  }
};

// Rows of a tile, in blocks of 64: of mixed heights, 8 blocks are tiles of 2, 3 and 3.
__device__ __forceinline__ int first_block(int tile_m) {
  return MIXED ? tile_m / 3 * 8 + tile_m % 3 * 8 / 3 : tile_m * (BM / 64);
}
__device__ __forceinline__ int blocks_of(const Problem& p, int tile_m) {  // it may reach below the last rows
  return min(first_block(tile_m + 1), (p.rows + 63) / 64) - first_block(tile_m);
}

// The values and metadata of 64 compacted columns: those of a tile's rows lie one after the other, for small bulk copies are slow.
// `more` bytes of X come with them.
__device__ __forceinline__ void fetch_w(const Problem& p, unsigned smem, int tile_m, int step, int slot, int more) {
  int all = (p.rows + 63) / 64, first = first_block(tile_m), blocks = blocks_of(p, tile_m);
  unsigned bar = full_bar(smem, slot);
  expect_tx(bar, blocks * 4608 + more);
  long long at = (long long)step * all + first;
  bulk_copy(smem + SMEM_A + slot * A_BYTES, p.values + at * 4096, blocks * 4096, bar);
  bulk_copy(smem + SMEM_META + slot * META_BYTES, p.meta + at * 512, blocks * 512, bar);
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

__device__ __forceinline__ void produce(const Problem& p, const Map&, unsigned smem) {
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
      if (threadIdx.x == 0) fetch_w(p, smem, tile_m, step, ring.slot, 0);
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
#else
__device__ __forceinline__ void produce(const Problem& p, const Map& x, unsigned smem) {
  if (threadIdx.x) return;
  Ring ring;
  Tiles tiles(p);
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
    int tile_m = tile % p.tiles_m, n0 = tile / p.tiles_m * BN;
#pragma unroll 1
    for (int step = 0; step < p.steps; ++step) {
      wait(empty_bar(smem, ring.slot), ring.phase ^ 1);
      unsigned to = smem + ring.slot * B_BYTES, bar = full_bar(smem, ring.slot);
      fetch_w(p, smem, tile_m, step, ring.slot, B_BYTES);
#if X_TOKENS
      tensor_load(to, &x, step * 64, n0, bar);
#else
#pragma unroll
      for (int i = 0; i < BN / 64; ++i) tensor_load(to + i * 8192, &x, n0 + i * 64, step * 64, bar);
#endif
      ring.next();
    }
  }
}
#endif

using Sums = float[MT * NP][NB / 2];
constexpr int TURN = !X_TOKENS, HALF = X_TOKENS ? 64 : 4096;  // bytes to the next 32 columns of X

struct Consumer {
  unsigned smem;
  int wm, wn, warp, lane;
  Ring ring;

  __device__ __forceinline__ void release(int slot) {
    if (lane == 0) arrive(empty_bar(smem, slot));
  }

  __device__ __forceinline__ void ready() {
    wait(full_bar(smem, ring.slot), ring.phase);
    if (GATHER) fence_async();  // what cp.async wrote is read by the tensor cores
  }

  // Where the values, the metadata and X of this thread lie in the ring.
  __device__ __forceinline__ unsigned values() const {
    return smem + SMEM_A + ring.slot * A_BYTES + wm * MT * 4096 + warp * 1024 + lane * 16;
  }
  __device__ __forceinline__ unsigned meta() const {
    return smem + SMEM_META + ring.slot * META_BYTES + wm * MT * 512 + warp * 128 + lane * 4;
  }
  __device__ __forceinline__ unsigned long long x() const {
    return descriptor(smem + ring.slot * B_BYTES + wn * NP * NB * 128, 8192, 1024);
  }

#if MIXED
  // Three warpgroups have registers for 32 columns of W each: what one loads is hidden behind the products of the others.
  __device__ __forceinline__ void multiply(Sums& acc, int steps) {
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      ready();
      unsigned m = lds32(meta()), at = values();
      unsigned long long desc = x();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 a = lds128(at + half * 512);
        begin_products();
#pragma unroll
        for (int part = 0; part < NP; ++part)
          if (half == 0)
            wgmma_sp<0, TURN>(acc[part], a, desc + part * (NB * 128 >> 4), m, s > 0);
          else
            wgmma_sp<1, TURN>(acc[part], a, desc + part * (NB * 128 >> 4) + (HALF >> 4), m, 1);
        commit_products();
        wait_for_products<0>();
        hold(a, m);
      }
      release(ring.slot);
      ring.next();
    }
  }

  // A tile in which this warpgroup has no rows.
  __device__ __forceinline__ void skip(int steps) {
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      ready();
      release(ring.slot);
      ring.next();
    }
  }
#else
  struct Fragment {  // 64 rows x 64 compacted columns of W
    uint4 a[2];
    unsigned meta;

    __device__ __forceinline__ void hold() const {  // its registers are read until the product is complete
      ::hold(a[0], meta);
      ::hold(a[1]);
    }
  };

  int held = -1;  // the slot that the product in flight reads

  // One step, of number 2 n + ODD. Two fragments take turns: one is loaded while the product of the other runs.
  template <int ODD>
  __device__ __forceinline__ void step(Sums& acc, Fragment (&f)[2], bool first) {
    ready();
    unsigned at = values(), metadata = meta();
    unsigned long long desc = x();
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      constexpr int SINGLE = MT == 1 ? ODD : 0;
      Fragment& now = f[(i + SINGLE) & 1];
      now.a[0] = lds128(at + i * 4096), now.a[1] = lds128(at + i * 4096 + 512), now.meta = lds32(metadata + i * 512);
      begin_products();
      wgmma_sp<0, TURN>(acc[i], now.a[0], desc, now.meta, !first);
      wgmma_sp<1, TURN>(acc[i], now.a[1], desc + (HALF >> 4), now.meta, 1);
      commit_products();
      wait_for_products<1>();
      f[(i + SINGLE + 1) & 1].hold();
      if (i == 0) {  // the last product of the step before is complete
        if (held >= 0) release(held);
        held = ring.slot;
      }
    }
    ring.next();
  }

  __device__ __forceinline__ void multiply(Sums& acc, int steps) {
    Fragment f[2];
    for (int s = 0; s < steps; s += 2) {
      step<0>(acc, f, s == 0);
      if (s + 1 < steps) step<1>(acc, f, false);
    }
    wait_for_products<0>();
    f[0].hold(), f[1].hold();
    release(held);
    held = -1;
  }
#endif
};

#if !OUT
// 16 rows x NB tokens of a warp, straight from registers: the four threads that hold 16 bytes together exchange what they
// have, so that each stores 16 bytes.
__device__ __forceinline__ void store(const Problem& p, const float (&acc)[NB / 2], int row0, int n0, int lane) {
  int g = lane >> 2, t = lane & 3;
  float shift0 = p.bias && row0 + g < p.rows ? widen(p.bias[row0 + g]) : 0.f;
  float shift1 = p.bias && row0 + g + 8 < p.rows ? widen(p.bias[row0 + g + 8]) : 0.f;
#pragma unroll
  for (int j = 0; j < NB / 8; j += 4) {
    unsigned low[4], high[4];  // rows g and g + 8
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* d = acc + 4 * (j + i);
      low[i] = pack2(act(d[0] + shift0), act(d[1] + shift0));
      high[i] = pack2(act(d[2] + shift1), act(d[3] + shift1));
    }
#if Y_TOKENS
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      unsigned w[4] = {turn(low[i]), turn(high[i]), turn(low[i + 1]), turn(high[i + 1])};
      exchange(w, t);
      int token = n0 + (j + i + (t >> 1)) * 8 + g, row = row0 + (t & 1) * 8;
      if (token < p.tokens) put8(p.y + (long long)token * p.ldy + row * 2, w, p.rows - row);
    }
#else
    exchange(low, t);
    exchange(high, t);
    int token = n0 + (j + t) * 8;
    char* to = p.y + (long long)(row0 + g) * p.ldy + token * 2;
    if (row0 + g < p.rows) put8(to, low, p.tokens - token);
    if (row0 + g + 8 < p.rows) put8(to + 8ll * p.ldy, high, p.tokens - token);
#endif
  }
}
#endif

#if OUT
// Who writes a box of BOX lines together: a warpgroup, or a warp, whose 16 rows of a feature-major block lie side by side.
#define TEAM (2 * BOX)
__device__ __forceinline__ void sync_team(int group) {
  if (BOX == 64)
    sync_some<128>(group + 2);
  else
    __syncwarp();
}

// The results of a warpgroup, 64 x 64 at a time through swizzled shared memory: the copy engine writes them while the next
// tile is under way, and leaves out what lies beyond D. `group` is the warpgroup, `row0` and `n0` its first row and token,
// `slot` the next of OUT buffers.
template <bool BIAS>
__device__ __forceinline__ void send(const Problem& p, const Map& map, unsigned smem, const Sums& acc, int group, int row0, int n0, int& slot) {
  static_assert(BOX == 64 || (BOX == 16 && !Y_TOKENS));
  int thread = threadIdx.x & 127, warp = thread >> 5, lane = thread & 31;
  int line = lane & 7, other = lane >> 3 & 1;  // of the 8 x 8 matrices that stmatrix writes: rows 0-7 and 8-15, two by two
#pragma unroll
  for (int i = 0; i < MT; ++i) {
    int row = row0 + i * 64 + warp * 16 + (lane >> 2);
    [[maybe_unused]] float shift0 = BIAS && row < p.rows ? widen(p.bias[row]) : 0.f;
    [[maybe_unused]] float shift1 = BIAS && row + 8 < p.rows ? widen(p.bias[row + 8]) : 0.f;
    auto low = [&](float f) { return act(BIAS ? f + shift0 : f); };  // of rows g, and g + 8
    auto high = [&](float f) { return act(BIAS ? f + shift1 : f); };
#pragma unroll
    for (int part = 0; part < NP * NB / 64; ++part) {
      unsigned block = smem + STAGES * B_BYTES + (group * OUT + slot) * BLOCK;
      if (++slot == OUT) slot = 0;
      if (thread % TEAM == 0) wait_until_read<OUT - 1>();
      sync_team(group);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float* d = acc[i * NP + part / (NB / 64)] + 4 * (part % (NB / 64) * 8 + j);
        unsigned w[4] = {pack2(low(d[0]), low(d[1])), pack2(high(d[2]), high(d[3])), pack2(low(d[4]), low(d[5])), pack2(high(d[6]), high(d[7]))};
        int eight = j + (lane >> 4);  // tokens, in the block
#if Y_TOKENS
        stmatrix<true>(block + (eight * 8 + line) * 128 + (((warp * 2 + other) ^ line) << 4), w);
#else
        stmatrix<false>(block + (warp * 16 + other * 8 + line) * 128 + ((eight ^ line) << 4), w);
#endif
      }
      fence_async();
      sync_team(group);
      if (thread % TEAM == 0) {
        int r = row0 + i * 64, n = n0 + part * 64;
        int line = thread / TEAM * BOX;
        tensor_store(&map, Y_TOKENS ? r : n, (Y_TOKENS ? n : r) + line, block + line * 128);
      }
    }
  }
}
#endif

__device__ __forceinline__ void consume(const Problem& p, const Map& map, unsigned smem) {
  int group = threadIdx.x / 128 - FEEDERS / 128, warp = (threadIdx.x / 32) & 3, lane = threadIdx.x & 31;
  Consumer c{smem, group % WM, group / WM, warp, lane};
  Tiles tiles(p);
  [[maybe_unused]] int slot = 0;
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
    int tile_m = tile % p.tiles_m, row = (first_block(tile_m) + c.wm * MT) * 64;
    int n0 = tile / p.tiles_m * BN + c.wn * NP * NB;
#if MIXED
    if (c.wm >= blocks_of(p, tile_m)) {
      c.skip(p.steps);
      continue;
    }
#endif
    Sums acc;
    c.multiply(acc, p.steps);
#if OUT
    if (p.bias)
      send<true>(p, map, smem, acc, group, row, n0, slot);
    else
      send<false>(p, map, smem, acc, group, row, n0, slot);
#else
#pragma unroll
    for (int i = 0; i < MT * NP; ++i) store(p, acc[i], row + i / NP * 64 + warp * 16, n0 + i % NP * NB, lane);
#endif
  }
  wait_until_read<0>();  // the end of the kernel waits for the rest
}

extern "C" __global__ void __launch_bounds__(FEEDERS + 128 * CONSUMERS, 1)
vnm_many(const __grid_constant__ Problem p, const __grid_constant__ Map y, const __grid_constant__ Map x) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  for (int i = threadIdx.x; i < STAGES * META_BYTES / 4; i += blockDim.x)  // below the last rows: valid, if unused
    *(unsigned*)(memory + SMEM_META + i * 4) = 0x44444444;
  fence_async();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_bar(full_bar(smem, i), GATHER ? FEEDERS + 1 : 1);
      init_bar(empty_bar(smem, i), CONSUMERS * 4);
    }
    fence_bars();
  }
  __syncthreads();
  after_the_kernel_before();
  if (threadIdx.x < FEEDERS) {
    fewer_registers<!GATHER ? 24 : FEEDERS == 128 ? 72 : 40>();
    produce(p, x, smem);
  } else {
    more_registers<MIXED ? 160 : GATHER ? 216 : 240>();
    consume(p, y, smem);
  }
}
