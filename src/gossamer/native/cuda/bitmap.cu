// y = act(x W' + bias) for a weight of any pattern, stored as bits and packed values, and up to 8 NT tokens: dense tensor
// cores, sparse bytes.
//
// A piece is 64 rows x 64 columns: 512 bytes of bits, and 128 bytes for each row of words (formats/levels/pieces.py). A block
// has 64 rows at a time, every gridDim / CLUSTER-th of them, and a cluster of blocks shares the columns; its KW warps each
// take every KW-th piece. A warp works alone: SLOTS slots of its own, filled by bulk copies, x by the copy engine, also for
// the next rows while the sums of these are added up. It expands the bits and values of 16 x 16 elements in registers
// (bitmap_decode.cuh), and multiplies by mma.m16n8k16.
//
// Floors on an H200, 14336 x 4096 at 50 / 60 / 70 / 80 %: 78, 66, 54, 41 MB; 18.1, 15.3, 12.5, 9.4 us at 4.3 TB/s. Measured with
// 8 tokens: 24.0, 22.6, 22.2, 21.7 us, where cuBLAS takes 30.0; 4096 x 14336: 22.7, 20.6, 20.2, 18.1 us, cuBLAS 31.9. Without the
// decoder: 22.1, 19.2, 16.7, 14.5. By Nsight Compute no unit is saturated at 80 %: 1.6 instructions a cycle, L1 48 %, DRAM 39 %;
// the processors are active for 73 % of the time, since 224 blocks are 1.7 for each of 132 of them.
//
// What was tried: 9 to 13 warps were slower than 8 (23.7 us for 22.2 at 70 %), because some are idle in the last round; 16 as fast
// as 8; three slots no faster than two (26.2 us for 24.2 at 50 %: fewer warps fit).
//
// Macros: ELEMENT, NT, KW, SLOTS, SETS (copies of the sums: KW / SETS warps add to the same one), CLUSTER, ACT. On sm_80:
// cp.async for all copies, no clusters.
#define WEIGHT 0
#include "bitmap_decode.cuh"
#include "sums.cuh"

#define THREADS (32 * KW)
constexpr int X_BYTES = NT * 1024, LINE = Lines<64>::LINE;
constexpr int SMEM_X = 0;                                       // SLOTS a warp, each 128-byte swizzled
constexpr int SMEM_TABLE = KW * SLOTS * X_BYTES;
constexpr int SMEM_SUMS = SMEM_TABLE + TABLE;
constexpr int SMEM_BAR = SMEM_SUMS + SETS * NT * 8 * LINE * 4;  // SLOTS a warp
constexpr int SMEM_W = (SMEM_BAR + KW * SLOTS * 8 + 127) / 128 * 128;  // SLOTS a warp: bits, values

struct Problem {
  const char* values;
  const char* bits;
  const int* pos;          // where the values of each piece begin, in rows of 128 bytes
  const char* x;           // token-major
  char* y;                 // token-major
  const Element* bias;
  const float* row_scale;    // null, as the next: sums.cuh asks for them
  const float* token_scale;
  int rows, k, tokens, steps;
  int ldx, ldy;            // bytes from one token to the next
  int slot;                // bytes of a slot: bits, the most values of a piece, and a row that is read in vain
};

struct alignas(64) Map {  // of x, for the copy engine
  unsigned long long opaque[16];
};

// The pieces of a warp, SLOTS ahead: of steps `begin`, `begin` + KW ... of every block of 64 rows that is this one's.
struct Stream {
  const Problem& p;
  const Map& map;
  unsigned smem, warp, lane;
  int begin, end;     // steps
  int block, blocks, stride;
  int next;           // the step to ask for next, of `block`
  int from, to;       // where its values begin and end

  __device__ __forceinline__ unsigned x(int slot) const { return smem + SMEM_X + (warp * SLOTS + slot) * X_BYTES; }
  __device__ __forceinline__ unsigned bits(int slot) const { return smem + SMEM_W + (warp * SLOTS + slot) * p.slot; }
  __device__ __forceinline__ unsigned bar(int slot) const { return smem + SMEM_BAR + (warp * SLOTS + slot) * 8; }
  __device__ __forceinline__ long long piece() const { return (long long)block * p.steps + next; }

  __device__ __forceinline__ void look_ahead() {
    if (next >= end) block += stride, next = begin;
    if (next >= end) block = blocks;  // a warp without a piece
    if (block < blocks) from = __ldg(p.pos + piece()), to = __ldg(p.pos + piece() + 1);
  }

  __device__ __forceinline__ void fetch(int slot) {
    if (block < blocks) {
      const int bytes = min((to - from) * ROW, p.slot - PIECE_BITS - ROW);  // more than there is room for is not read
      const char* const bits_at = p.bits + piece() * PIECE_BITS;
      const char* const values_at = p.values + (long long)from * ROW;
#if __CUDA_ARCH__ >= 900
      if (lane == 0) {
        expect_tx(bar(slot), PIECE_BITS + bytes + p.tokens * 128);
        bulk_copy(bits(slot), bits_at, PIECE_BITS, bar(slot));
        if (bytes) bulk_copy(bits(slot) + PIECE_BITS, values_at, bytes, bar(slot));
        tensor_load(x(slot), &map, next * 64, 0, bar(slot));
      }
#else
      for (int i = lane * 16; i < PIECE_BITS; i += 512) copy16<true>(bits(slot) + i, bits_at + i, 16);
      for (int i = lane * 16; i < bytes; i += 512) copy16<true>(bits(slot) + PIECE_BITS + i, values_at + i, 16);
      for (int i = lane; i < NT * 64; i += 32) {
        int token = i >> 3, chunk = i & 7, left = token < p.tokens ? clamp16((p.k - next * 64 - chunk * 8) * 2) : 0;
        const char* at = p.x + (long long)token * p.ldx + next * 128 + chunk * 16;
        copy16<false>(x(slot) + token * 128 + ((chunk ^ (token & 7)) << 4), left ? at : p.x, left);
      }
#endif
      next += KW;
      look_ahead();
    }
#if __CUDA_ARCH__ < 900
    mark_copies();
#endif
  }

  __device__ __forceinline__ void arrived(int slot, int phase) {
#if __CUDA_ARCH__ >= 900
    wait(bar(slot), phase);
#else
    wait_for_groups<SLOTS - 1>();
    __syncwarp();
#endif
  }

  __device__ __forceinline__ void done(int slot) {
#if __CUDA_ARCH__ >= 900
    fence_async();
#endif
    __syncwarp();
    fetch(slot);
  }
};

__device__ __forceinline__ void multiply(float (&sum)[4][NT][4], Decoder decoder, unsigned x, unsigned bits, int lane) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const unsigned word = lds32(bits + s * 128 + lane * 4);
    unsigned b[NT][2];
#pragma unroll
    for (int tile = 0; tile < NT; tile += 2) {  // two times 8 tokens, of which the last may not be there
      unsigned r[4];
      int token = (NT == 1 ? 0 : tile + (lane >> 4)) * 8 + (lane & 7), chunk = s * 2 + (lane >> 3 & 1);
      ldmatrix(r, x + token * 128 + ((chunk ^ (token & 7)) << 4));
      b[tile][0] = r[0], b[tile][1] = r[1];
      if (tile + 1 < NT) b[tile + 1][0] = r[2], b[tile + 1][1] = r[3];
    }
#pragma unroll
    for (int strip = 0; strip < 4; ++strip) {
      unsigned a[4];
      decoder.decode(a, word, strip);
#pragma unroll
      for (int tile = 0; tile < NT; ++tile) mma(sum[strip][tile], a, b[tile][0], b[tile][1]);
    }
  }
}

// Sums of a warp into shared memory: SETS of them, and warps with the same one take turns.
__device__ __forceinline__ void keep(const float (&sum)[4][NT][4], float* sums, int warp, int lane) {
  const int g = lane >> 2, t = lane & 3;
  sums += warp % SETS * NT * 8 * LINE;
  for (int turn = 0; turn < (KW + SETS - 1) / SETS; ++turn) {
    __syncthreads();
    if (turn != warp / SETS) continue;
#pragma unroll
    for (int strip = 0; strip < 4; ++strip)
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
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x % CLUSTER;
  const int begin = p.steps * rank / CLUSTER + warp, end = p.steps * (rank + 1) / CLUSTER;
  const int first = blockIdx.x / CLUSTER, blocks = (p.rows + 63) / 64, stride = gridDim.x / CLUSTER;
  Stream w{p, map, smem, (unsigned)warp, (unsigned)lane, begin, end, first, blocks, stride, begin};
#if __CUDA_ARCH__ >= 900
  if (lane == 0)
    for (int slot = 0; slot < SLOTS; ++slot) init_bar(w.bar(slot), 1);
  fence_bars();
  __syncwarp();
#endif
  after_the_kernel_before();
  w.look_ahead();
  for (int slot = 0; slot < SLOTS; ++slot) w.fetch(slot);
  write_table(smem + SMEM_TABLE, threadIdx.x, THREADS);  // while the first pieces are on their way
  __syncthreads();
  int slot = 0, phase = 0;
#pragma unroll 1
  for (int block = first; block < blocks; block += stride) {
    const AddUp<64, NT * 8, SETS, THREADS, CLUSTER> add_up(p, block * 64, rank);
    float sum[4][NT][4] = {};
#pragma unroll 1
    for (int step = begin; step < end; step += KW) {
      w.arrived(slot, phase);
      multiply(sum, Decoder(smem + SMEM_TABLE, w.bits(slot) + PIECE_BITS, lane), w.x(slot), w.bits(slot), lane);
      w.done(slot);
      if (++slot == SLOTS) slot = 0, phase ^= 1;
    }
    float* const sums = (float*)(memory + SMEM_SUMS);
    keep(sum, sums, warp, lane);
    add_up.run(p, smem + SMEM_SUMS, sums);
  }
}
