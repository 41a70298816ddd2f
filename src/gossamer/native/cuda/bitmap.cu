// y = act(x W' + bias) for a weight of any pattern, stored as codes and packed words, and up to 8 NT tokens: two planes of 2:4
// on sparse tensor cores.
//
// A piece is 16 rows x 128 columns: 288 bytes of codes, and 128 bytes for each row of values (formats/levels/pieces.py). A
// strip is 16 rows. Strips are divided evenly among the blocks; a cluster of blocks shares the columns, and KW / TEAM teams
// of warps take every (KW / TEAM)-th piece. A team shares 128 columns of x, brought XS times ahead; each of its warps
// multiplies HIGH strips one after the other, with SLOTS pieces of its own on their way. It loads words straight into the
// registers (bitmap_decode.cuh), asks for the next piece, and multiplies both planes by mma.sp.m16n8k32. Sums are added in a
// fixed order.
//
// Floors on an H200, 14336 x 4096 at 50 / 60 / 70 / 80 / 90 %: 79, 67, 54, 42, 31 MB; 18.5, 15.6, 12.6, 9.7, 7.2 us at 4.3 TB/s.
// The loop has 292 instructions for a piece and 8 tokens (nvcc 13.0, SASS), 307 for 16: 63000 for each processor, 9.0 us at four
// instructions a cycle. A piece takes 52 cycles of shared memory (8 tokens; x stays in registers for all strips of a warp). 896
// strips are 6.8 for each of 132 processors, 256 are 1.9: 97 % of the processors are busy. Each block reads all of x: 9 MB of L2
// for 8 tokens and 17 MB for 16.
//
// Measured for 14336 x 4096 at 50 / 60 / 70 / 80 / 90 % (benchmarks/gpu_bitmaps.py --bf16; cuBLAS: 30.8 and 32.9 us):
//   8 tokens                        23.0, 20.5, 17.0, 15.7, 15.5 us; without products 21.7, 19.0, 16.1, 13.0, 10.2
//   16 tokens                       24.4, 23.9, 20.5, 20.1, 19.4;    without products 22.5, 21.4, 19.3, 15.8, 11.7
// Copies are the limit up to 70 %, at 3.35 to 3.65 TB/s, instructions above. Asking for 16 tokens of x instead of 8 costs the
// copies 1 to 3 us. No faster: 48 or 96 KB on their way. Slower: 12 warps (24.1 and 18.0 us at 50 and 80 %), 12 warps that hold x
// (23.8, 17.8), teams of 2 (23.8, 17.5), one chain of sums (23.2, 16.0).
//
// The former layout, with a word for each single value, had 277 and 283 instructions by the same count and 86, 74, 62, 49, 33 MB:
// 24.4, 21.9, 19.2, 15.8, 15.1 us for 8 tokens and 25.8, 24.9, 22.2, 19.3, 18.1 for 16, without products 23.2, 20.5, 18.0, 15.0,
// 10.9 for 8. With this one's tricks (below; cuBLAS: 31.5 us) it had 25.8, 24.4, 22.6, 18.4, 17.6 us for 16: better from 80 % on.
// Tried there, and no faster by more than 1 %: products before the next piece is asked for, codes by cp.async, no fence. Slower:
// 8 warps (18.6 us at 90 %), teams of 2 (16.7), clusters of 2 (30 to 39).
//
// Counted for single values of 16 bits (instructions of the loop for a piece, 8 tokens):
//   predicates for three loads of a group, zeros before them    359
//   a row of zeros for single values that there are not         327; then a word replaces what was loaded
//   six tests and their shift in one instruction (R2P)          355: ptxas does it only for the lowest byte
//   no shifts, x in registers                                   320
//   elect.sync instead of lane == 0: no loops around copies     311
//   logic in lop3.b32, no recomputed masks                      292 (this); 291 with one sum for both planes
//   the former layout with all that                             247
//
// Before, in another run (cuBLAS: 32.3 us), at 50 / 70 / 80 / 90 %, with pieces of 256 columns, whose places were loaded one piece
// ahead, and loads that each moved the address of the next one (cuBLAS: 32.3 us):
//   8 warps, 2 slots                24.7, 22.0, 21.6, 21.4 us: latency, since density hardly matters
//   8 warps, 3 slots                26.6, 22.9, 22.4, 21.9; without products 23.9, 17.4, 14.1, 10.9
//   4 warps, 2 slots                43.0, 42.6, 42.6, 42.5
//   16 warps, 2 slots               no room, 20.2, 17.1, 16.0; 3 slots: 16.7 at 90 %
//   a piece in one turn of a loop   28.0, 21.8, 22.0, 21.3, with 3 slots
//   teams of 2, 8 warps, 2 slots    27.1, 25.7, 25.5, 25.0
//   clusters of 2, 8 warps, 2 slots 33.5, 31.3, 30.9, 30.4
//
// WEIGHT 1: e4m3 in two planes, of which the first one is stored for all groups (bitmap_planes.cuh). A piece has 384 bytes of
// codes, 1024 of the first plane and two for each group of the second one: 50, 46, 43, 41, 41 MB at 50 / 60 / 70 / 80 / 90 %,
// 11.6 to 9.5 us. For 8 tokens a warp takes 207 instructions for a piece (nvcc 13.0, SASS; 220 when timed), of which 130 decode:
// 6.4 us at four instructions a cycle. Pieces are asked for while the kernel before this one rounds x.
//
// Macros: ELEMENT, WEIGHT (0 or 1), NT, KW, TEAM, SLOTS, XS, HIGH, SETS (copies of the sums; teams with the same one take
// turns), CLUSTER, ONCE (1: HIGH * TEAM are all strips of a block), ACT; COPIES_ONLY (nothing is multiplied) to measure.
// On sm_80: cp.async for all copies, no clusters, TEAM is 1.
#ifndef WEIGHT
#define WEIGHT 0
#endif
#define SPLIT (NT <= 2)                    // sums of their own for the second plane: 2 % at 80 %, nothing at 50 %
#define HOLD_X (NT <= 2 && NT * HIGH <= 8)  // x stays in registers for all strips
#if WEIGHT
#define HALF_PRODUCTS
#include "bitmap_planes.cuh"
constexpr int ZEROS = 0;
#else
#include "bitmap_decode.cuh"
#endif
#include "sums.cuh"

#define THREADS (32 * KW)
#define TEAMS (KW / TEAM)
#define ROWS (16 * HIGH * TEAM)
constexpr int BOX = NT * 1024, X_BYTES = 2 * BOX, LINE = Lines<ROWS>::LINE;  // BOX: 64 columns of x, 128-byte swizzled
constexpr int SMEM_W = TEAMS * XS * X_BYTES;  // after x: SLOTS pieces a warp

struct Problem {
  const char* values;
  const char* bits;
  const int* pos;          // where the words of each piece begin, in rows of 128 bytes
  const char* x;           // token-major
  char* y;                 // token-major
  const Element* bias;
  const float* row_scale;    // null, as the next: sums.cuh asks for them
  const float* token_scale;
  int rows, k, tokens, steps;
  int ldx, ldy;            // bytes from one token to the next
  int slot;                // bytes of a slot: codes, a row of zeros, and the most words of a piece
};

struct alignas(64) Map {  // of x, for the copy engine
  unsigned long long opaque[16];
};

// What a warp asks for: pieces, and columns of x for its team, ahead of the products.
struct Stream {
  const Problem& p;
  const Map& map;
  unsigned smem, warp, lane;
  int begin, end;        // steps of this block
  int strip0, strips;    // the warp's first strip, and the end of the block's
  int x_strip0, x_step;  // of x, to ask for next
  int asked, looked;     // pieces that were asked for, and were asked for when lanes looked ahead
  int count;             // of all pieces of the warp
  int piece, from, to;   // of a lane: a later piece, and where its words begin and end

  __device__ __forceinline__ unsigned x(int slot) const { return smem + (warp / TEAM * XS + slot) * X_BYTES; }
  __device__ __forceinline__ unsigned bits(int slot) const { return smem + SMEM_W + (warp * SLOTS + slot) * p.slot; }
  __device__ __forceinline__ unsigned bars() const { return smem + SMEM_W + KW * SLOTS * p.slot; }
  __device__ __forceinline__ unsigned bar(int slot) const { return bars() + (warp * SLOTS + slot) * 8; }
  __device__ __forceinline__ unsigned x_bar(int slot) const { return bars() + (KW * SLOTS + warp / TEAM * 2 * XS + slot) * 8; }
  __device__ __forceinline__ unsigned x_free(int slot) const { return x_bar(XS + slot); }
  __device__ __forceinline__ bool leads() const { return warp % TEAM == 0; }

  __device__ __forceinline__ void init() const {
    for (int i = 0; ZEROS && i < SLOTS; ++i) sts32(bits(i) + PIECE_BITS + lane * 4, 0);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      for (int i = 0; i < SLOTS; ++i) init_bar(bar(i), 1);
      for (int i = 0; leads() && i < XS; ++i) init_bar(x_bar(i), 1), init_bar(x_free(i), TEAM);
    }
    fence_bars();
    if (TEAM > 1)
      __syncthreads();
    else
      __syncwarp();
#else
    __syncwarp();
#endif
  }

  // Each lane looks for one of the next 32 pieces of the warp: what is asked for later does not wait for memory twice.
  __device__ __forceinline__ void look_ahead() {
    const int turns = (end - begin + TEAMS - 1) / TEAMS, mine = asked + lane;
    looked = asked, count = piece = 0;
    for (int first = strip0; first < strips; first += HIGH * TEAM) {
      const int high = min(HIGH, strips - first), n = mine - count;
      piece = n >= 0 && n < turns * high ? (first + n % high) * p.steps + begin + n / high * TEAMS : piece;
      count += turns * high;
    }
    from = __ldg(p.pos + piece), to = __ldg(p.pos + piece + 1);
  }

  __device__ __forceinline__ void fetch(int slot) {
    if (asked < count) {
      const int wanted = __shfl_sync(0xffffffff, piece, asked - looked);
      const int from = __shfl_sync(0xffffffff, this->from, asked - looked), to = __shfl_sync(0xffffffff, this->to, asked - looked);
      const int bytes = min((to - from) * ROW, p.slot - PIECE_BITS - ZEROS);  // more than there is room for is not read
      const char* const bits_at = p.bits + (long long)wanted * PIECE_BITS;
      const char* const values_at = p.values + (long long)from * ROW;
#if __CUDA_ARCH__ >= 900
      if (elected()) {
        expect_tx(bar(slot), PIECE_BITS + bytes);
        bulk_copy(bits(slot), bits_at, PIECE_BITS, bar(slot));
        if (bytes) bulk_copy(bits(slot) + PIECE_BITS + ZEROS, values_at, bytes, bar(slot));
      }
#else
      for (int i = lane * 16; i < PIECE_BITS; i += 512) copy16<true>(bits(slot) + i, bits_at + i, 16);
      for (int i = lane * 16; i < bytes; i += 512) copy16<true>(bits(slot) + PIECE_BITS + ZEROS + i, values_at + i, 16);
#endif
      ++asked;
    }
#if __CUDA_ARCH__ < 900
    mark_copies();
#endif
  }

  // The next 128 columns of x.
  __device__ __forceinline__ void fetch_x(int slot) {
    if (!leads() || begin >= end || x_strip0 >= strips) return;
    const int col0 = x_step * 128;
    x_step += TEAMS;
    if (x_step >= end) x_step = begin, x_strip0 += HIGH * TEAM;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      expect_tx(x_bar(slot), 2 * p.tokens * 128);
      for (int box = 0; box < 2; ++box) tensor_load(x(slot) + box * BOX, &map, col0 + box * 64, 0, x_bar(slot));
    }
#else
    for (int i = lane; i < NT * 128; i += 32) {
      const int token = i >> 4, box = i >> 3 & 1, chunk = i & 7, col = col0 + box * 64 + chunk * 8;
      const int left = token < p.tokens ? clamp16((p.k - col) * 2) : 0;
      const char* at = p.x + (long long)token * p.ldx + col * 2;
      copy16<false>(x(slot) + box * BOX + token * 128 + ((chunk ^ (token & 7)) << 4), left ? at : p.x, left);
    }
#endif
  }

  __device__ __forceinline__ void arrived(int slot, int phase) const {
#if __CUDA_ARCH__ >= 900
    wait(bar(slot), phase);
#else
    wait_for_groups<SLOTS - 1>();
    __syncwarp();
#endif
  }

  __device__ __forceinline__ void x_arrived(int slot, int phase) const {
#if __CUDA_ARCH__ >= 900
    wait(x_bar(slot), phase);
#else
    wait_for_copies();
    __syncwarp();
#endif
  }

  // The warp has read its x: the team's leader asks for more once all have.
  __device__ __forceinline__ void x_done(int slot, [[maybe_unused]] int phase) {
    done();
#if __CUDA_ARCH__ >= 900
    if (TEAM > 1) {
      if (lane == 0) arrive(x_free(slot));
      if (leads()) wait(x_free(slot), phase);
    }
#endif
    fetch_x(slot);
  }

  static __device__ __forceinline__ void done() {  // a slot is free
#if __CUDA_ARCH__ >= 900
    fence_async();
#endif
    __syncwarp();
  }
};

// 128 columns of x, as operands. With few sums they stay in registers for all strips.
struct Columns {
#if HOLD_X
  unsigned held[2][NT][2][4];
#endif
  unsigned at;

  __device__ __forceinline__ Columns(unsigned x, int lane) : at(x + (lane & 7) * 128 + ((lane >> 3 ^ lane & 7) << 4)) {
#if HOLD_X
#pragma unroll
    for (int i = 0; i < 2 * NT; ++i) read(held[i / NT][i % NT], i / NT, i % NT);
#endif
  }

  __device__ __forceinline__ void read(unsigned (&b)[2][4], int pair, int tile) const {
    ldmatrix(b[0], at + pair * BOX + tile * 1024);
    ldmatrix(b[1], (at ^ 64) + pair * BOX + tile * 1024);
  }

  __device__ __forceinline__ void load(unsigned (&b)[2][4], int pair, int tile) const {
#if HOLD_X
#pragma unroll
    for (int i = 0; i < 8; ++i) b[i / 4][i % 4] = held[pair][tile][i / 4][i % 4];
#else
    read(b, pair, tile);
#endif
  }
};

// Half of a piece, 64 columns, in registers.
struct Pair {
  unsigned a[2][2][4], meta;  // by step and plane

  __device__ __forceinline__ void multiply(float (&sum)[NT][4], float (&second)[NT][4], const Columns& x, int pair) const {
#pragma unroll
    for (int tile = 0; tile < NT; ++tile) {
      unsigned b[2][4];
      x.load(b, pair, tile);
      mma_sp<0>(sum[tile], words(a[0][0]), b[0], meta);
      mma_sp<0>(second[tile], words(a[0][1]), b[0], SECOND);
      mma_sp<1>(sum[tile], words(a[1][0]), b[1], meta);
      mma_sp<1>(second[tile], words(a[1][1]), b[1], SECOND);
    }
  }

  static __device__ __forceinline__ uint4 words(const unsigned (&a)[4]) { return {a[0], a[1], a[2], a[3]}; }
};

#if WEIGHT == 0
// What a lane needs to decode: nothing else of a warp's pieces is kept from one to the next.
typedef Exchange Decoder;

__device__ __forceinline__ void load_piece(Pair& left, Pair& right, const Exchange& exchange, unsigned bits, unsigned lane) {
  const uint2 two = lds64(bits + lane * 8);
  const unsigned next = lds8(bits + 256 + lane), begin = bits + PIECE_BITS;
  const Codes codes(two.x), more(two.y);
  unsigned at = begin + ROW + lane * 4 + (next >> 5) * ROW;
  decode(left.a, at, begin + lane * 4, codes);
  left.meta = exchange(codes.meta);
  at = __shfl_sync(0xffffffff, at, next & 31);
  decode(right.a, at, begin + (next & 31) * 4 + 2, more);
  right.meta = exchange(more.meta);
}
#else
struct Decoder {
  __device__ __forceinline__ explicit Decoder(int) {}
};

__device__ __forceinline__ void load_piece(Pair& left, Pair& right, const Decoder&, unsigned bits, unsigned lane) {
  Planes planes(bits, lane);
  planes.decode<0>(left.a);
  planes.decode<1>(right.a);
  left.meta = planes.meta[0], right.meta = planes.meta[1];
}
#endif

__device__ __forceinline__ void multiply_piece(float (&sum)[NT][4], Stream& w, const Decoder& decoder, int slot, const Columns& x) {
#if SPLIT
  float second[NT][4] = {};  // of the second plane: no product waits for one of the other plane
#else
  float(&second)[NT][4] = sum;
#endif
#ifdef COPIES_ONLY
  w.done(), w.fetch(slot);
  return;
#endif
  Pair left, right;
  load_piece(left, right, decoder, w.bits(slot), w.lane);
  w.done();  // the piece is in registers: the next one is asked for before the products
  w.fetch(slot);
  left.multiply(sum, second, x, 0);
  right.multiply(sum, second, x, 1);
#if SPLIT
#pragma unroll
  for (int i = 0; i < NT * 4; ++i) sum[i / 4][i % 4] += second[i / 4][i % 4];
#endif
}

// Sums of a warp into shared memory: SETS of them, and teams with the same one take turns.
__device__ __forceinline__ void keep(const float (&sum)[HIGH][NT][4], float* sums, int warp, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const int team = warp / TEAM;
  sums += team % SETS * NT * 8 * LINE + warp % TEAM * HIGH * 16;
#pragma unroll 1
  for (int turn = 0; turn < (TEAMS + SETS - 1) / SETS; ++turn) {
    __syncthreads();
    if (turn != team / SETS) continue;
#pragma unroll
    for (int strip = 0; strip < HIGH; ++strip)
#pragma unroll
      for (int tile = 0; tile < NT; ++tile)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          float* at = sums + (tile * 8 + 2 * t + (q & 1)) * LINE + strip * 16 + g + 8 * (q >> 1);
          *at = turn ? *at + sum[strip][tile][q] : sum[strip][tile][q];
        }
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
  __cluster_dims__(CLUSTER, 1, 1)
#endif
  bitmap(const __grid_constant__ Problem p, const __grid_constant__ Map map) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  // the compiler must know what is the same in all lanes of a warp: else each copy is a loop over lanes
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffff, threadIdx.x >> 5, 0), rank = blockIdx.x % CLUSTER;
  const int begin = p.steps * rank / CLUSTER + warp / TEAM, end = p.steps * (rank + 1) / CLUSTER;
  const int all = (p.rows + 15) / 16, groups = gridDim.x / CLUSTER, group = blockIdx.x / CLUSTER;
  const int first = (int)((long long)all * group / groups), strips = (int)((long long)all * (group + 1) / groups);
  const int part = warp % TEAM * HIGH;  // of the strips at once: where this warp's begin
  Stream w{p, map, smem, (unsigned)warp, (unsigned)lane, begin, end, first + part, strips, first, begin, 0};
  w.init();
#if WEIGHT  // the kernel before this one makes x, and began after all before it had ended: W is asked for meanwhile
  let_the_next_kernel_start();
#else
  after_the_kernel_before();
#endif
  w.look_ahead();
#if WEIGHT == 0
  for (int i = 0; i < XS; ++i) w.fetch_x(i);
#endif
  for (int slot = 0; slot < SLOTS; ++slot) w.fetch(slot);
#if WEIGHT
  wait_for_the_kernel_before();
  for (int i = 0; i < XS; ++i) w.fetch_x(i);
#endif
  const Decoder decoder(lane);
  const int sums_at = ONCE ? 0 : (int)(SMEM_W + KW * SLOTS * p.slot + (KW * SLOTS + 2 * TEAMS * XS) * 8 + 15) / 16 * 16;
  float* const sums = (float*)(memory + sums_at);
  Problem mine = p;
  mine.rows = min(p.rows, strips * 16);
  int slot = 0, phase = 0, x_slot = 0, x_phase = 0;
#pragma unroll 1
  for (int strip0 = first; strip0 < strips; strip0 += HIGH * TEAM) {
    const AddUp<ROWS, NT * 8, SETS, THREADS, CLUSTER> add_up(mine, strip0 * 16, rank);
    float sum[HIGH][NT][4] = {};
#pragma unroll 1
    for (int step = begin; step < end; step += TEAMS) {
      if (w.asked - w.looked > 32 - HIGH) w.look_ahead();
      w.x_arrived(x_slot, x_phase);
      const Columns x(w.x(x_slot), lane);
#pragma unroll
      for (int strip = 0; strip < HIGH; ++strip) {
        if (strip0 + part + strip >= strips) break;
        w.arrived(slot, phase);
        multiply_piece(sum[strip], w, decoder, slot, x);
        if (++slot == SLOTS) slot = 0, phase ^= 1;
      }
      w.x_done(x_slot, x_phase);
      if (++x_slot == XS) x_slot = 0, x_phase ^= 1;
    }
    keep(sum, sums, warp, lane);
    add_up.run(mine, smem + sums_at, sums);
  }
}
