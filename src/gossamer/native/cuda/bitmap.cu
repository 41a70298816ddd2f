// y = act(x W' + bias) for a weight of any pattern, stored as bits and packed values, and up to 8 NT tokens: dense tensor
// cores, sparse bytes.
//
// A piece is 64 rows x 64 columns: 768 bytes of bits and numbers, and 2 bytes for each value. A block has RB times 64 rows and a cluster
// of blocks shares the columns; RB x KW warps of a block each take every KW-th piece of 64 rows. A warp works alone: two
// slots of its own, filled by bulk copies, x by the copy engine; it expands the bits and values of 16 x 16 elements in
// registers (bitmap_decode.cuh), and multiplies by mma.m16n8k16.
//
// Floors on an H200, 14336 x 4096 at 50 / 60 / 70 / 80 %: 70, 58, 46, 34 MB; 16.2, 13.5, 10.8, 8.0 us at 4.3 TB/s. It is
// instructions that bound it, not these: see bitmap_decode.cuh. Measured with 8 tokens: 31.1, 29.1, 28.1, 22.3 us, where cuBLAS takes
// 30.5 to 33.4. 16 warps a processor are the best; clusters of 4 and 8 took 1.4 to 2 times as long.
//
// Macros: ELEMENT, NT, RB, KW, CLUSTER, ALONE, ACT. On sm_80: cp.async for all copies, no clusters.
#define WEIGHT 0
#include "bitmap_decode.cuh"
#include "sums.cuh"

#define WARPS (RB * KW)
#define THREADS (32 * WARPS)
constexpr int X_BYTES = NT * 1024;
constexpr int SMEM_X = 0;                                  // two slots a warp, each 128-byte swizzled
constexpr int SMEM_TABLES = WARPS * 2 * X_BYTES;           // one a warp, 16 bytes
constexpr int SMEM_BAR = SMEM_TABLES + WARPS * 16;         // two a warp
constexpr int SMEM_W = SMEM_BAR + WARPS * 16;              // two slots a warp: bits, values

struct Problem {
  const char* values;
  const char* bits;
  const int* pos;          // where the values of each piece begin, in 16 bytes
  const char* x;           // token-major
  char* y;                 // token-major
  const Element* bias;
  const float* row_scale;    // null, as the next: sums.cuh asks for them
  const float* token_scale;
  int rows, k, tokens, steps;
  int ldx, ldy;            // bytes from one token to the next
  int slot;                // bytes of a slot: bits, the most values of a piece, and 16 more: a pair is read where one is
};

struct alignas(64) Map {  // of x, for the copy engine
  unsigned long long opaque[16];
};

// The pieces of a warp, two slots ahead.
struct Stream {
  const Problem& p;
  const Map& map;
  unsigned smem, warp, lane;
  long long first;    // number of the first piece of these 64 rows
  int next, end;      // the step to ask for next
  int from, to;       // where its values begin and end

  __device__ __forceinline__ unsigned x(int slot) const { return smem + SMEM_X + (warp * 2 + slot) * X_BYTES; }
  __device__ __forceinline__ unsigned bits(int slot) const { return smem + SMEM_W + (warp * 2 + slot) * p.slot; }
  __device__ __forceinline__ unsigned bar(int slot) const { return smem + SMEM_BAR + (warp * 2 + slot) * 8; }

  __device__ __forceinline__ void look_ahead() {
    if (next < end) from = __ldg(p.pos + first + next), to = __ldg(p.pos + first + next + 1);
  }

  __device__ __forceinline__ void fetch(int slot) {
    if (next < end) {
      const long long piece = first + next;
      const int bytes = min((to - from) * 16, p.slot - PIECE_BITS - 16);  // more than there is room for is not read
#if __CUDA_ARCH__ >= 900
      if (lane == 0) {
        expect_tx(bar(slot), PIECE_BITS + bytes + p.tokens * 128);
        bulk_copy(bits(slot), p.bits + piece * PIECE_BITS, PIECE_BITS, bar(slot));
        if (bytes) bulk_copy(bits(slot) + PIECE_BITS, p.values + from * 16ll, bytes, bar(slot));
        tensor_load(x(slot), &map, next * 64, 0, bar(slot));
      }
#else
      for (int i = lane * 16; i < PIECE_BITS; i += 512) copy16<true>(bits(slot) + i, p.bits + piece * PIECE_BITS + i, 16);
      for (int i = lane * 16; i < bytes; i += 512) copy16<true>(bits(slot) + PIECE_BITS + i, p.values + from * 16ll + i, 16);
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
    wait_for_groups<1>();
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

__device__ __forceinline__ void multiply(float (&sum)[4][NT][4], const Decoder& decoder, unsigned x, unsigned bits, int lane) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    Step step(bits, s, lane);
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
      decoder.decode(a, step.of(strip), step.begin(strip, bits + PIECE_BITS));
#pragma unroll
      for (int tile = 0; tile < NT; ++tile) mma(sum[strip][tile], a, b[tile][0], b[tile][1]);
    }
  }
}

// Sums of a warp into shared memory, of those with the same rows one after the other.
__device__ __forceinline__ void keep(const float (&sum)[4][NT][4], float* sums, int block, int part, int lane) {
  constexpr int LINE = Lines<64 * RB>::LINE;
  const int g = lane >> 2, t = lane & 3;
  for (int turn = 0; turn < KW; ++turn) {
    __syncthreads();
    if (turn != part) continue;
#pragma unroll
    for (int strip = 0; strip < 4; ++strip)
#pragma unroll
      for (int tile = 0; tile < NT; ++tile)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          float* at = sums + (tile * 8 + 2 * t + (q & 1)) * LINE + block * 64 + strip * 16 + g + 8 * (q >> 1);
          *at = turn ? *at + sum[strip][tile][q] : sum[strip][tile][q];
        }
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, ALONE ? 1 : 2)
#if CLUSTER > 1
  __cluster_dims__(CLUSTER, 1, 1)
#endif
  bitmap(const __grid_constant__ Problem p, const __grid_constant__ Map map) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = warp % KW, block = warp / KW;
  const int rank = blockIdx.x % CLUSTER, row = (blockIdx.x / CLUSTER * RB + block) * 64;
  const int begin = p.steps * rank / CLUSTER, end = p.steps * (rank + 1) / CLUSTER;
  Stream w{p, map, smem, (unsigned)warp, (unsigned)lane, (long long)(row / 64) * p.steps, begin + part, row < p.rows ? end : 0};
#if __CUDA_ARCH__ >= 900
  if (lane == 0) init_bar(w.bar(0), 1), init_bar(w.bar(1), 1);
  fence_bars();
  __syncwarp();
#endif
  after_the_kernel_before();
  int left = w.end > w.next ? (w.end - w.next + KW - 1) / KW : 0;
  w.look_ahead();
  w.fetch(0);
  w.fetch(1);
  AddUp<64 * RB, NT * 8, 1, THREADS, CLUSTER> add_up(p, row - block * 64, rank);
  float sum[4][NT][4] = {};
  const Decoder decoder(smem + SMEM_TABLES + warp * 16, lane);
  int slot = 0, phase = 0;
#pragma unroll 1
  for (; left > 0; --left) {
    w.arrived(slot, phase);
    multiply(sum, decoder, w.x(slot), w.bits(slot), lane);
    w.done(slot);
    phase ^= slot;
    slot ^= 1;
  }
  keep(sum, (float*)memory, block, part, lane);
  add_up.run(p, smem, (float*)memory);
}
