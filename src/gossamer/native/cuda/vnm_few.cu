// y = act(x W' + bias) for a weight in packed V:N:M and up to 8 NT tokens (NT = 1 or 2): bound by the bytes of W.
//
// A cluster of blocks takes 64 RT rows; its blocks share the columns, and so do the WARPS warps of a block. A warp works
// alone: a piece of 64 RT rows x 64 compacted columns is on its way into shared memory by bulk copies while it gathers the
// columns of x for the piece before and multiplies by mma.sp.m16n8k32; it waits for nobody before the end. Sums are added
// in a fixed order: by warps, then by blocks over distributed shared memory.
//
// Floor: the bytes of W, 1.125 * 2/m * 2 rows k, at 4.3 TB/s on an H200: 14336 x 4096 at 2:8 is 33 MB, 7.7 us; measured
// 10.3. An empty kernel takes 1.1. Of 14.5 us, 16 tokens, with parts left out: gathering 2, adding up 1.9 (0.9 since a
// thread adds four rows at once), multiplying 1.5.
// A kernel is set up while the one before it ends. Where blocks are no more than processors there must not be room for two
// on one (ALONE): else some processors get two and others none, 14.8 us for 11.8 at 4096 x 14336, 2:8 and one token.
// Tried, and slower: x of the next piece on its way during this one's products (its registers, and a wait for any load is
// a wait for all: 12.9 us for 11.6 at 2:8, 16 tokens), more pieces on their way, x compacted by a kernel before this one
// (W is asked for meanwhile: 2 us sooner at 4096 x 14336 and 16 tokens, nowhere else, and 5 us of CPU time), two lanes for
// the 16 columns of a group at 2:16, or both halves of them at once (6 to 10 % slower), gathering all of x before the first
// piece, asking for W in the second cache while the kernel before runs, clusters of 4 and 8 where 2 fill the GPU.
//
// Macros: ELEMENT (0 float16, 1 bfloat16), NT, RT (2: v is a multiple of 128, or all rows), WARPS, CLUSTER, SETS (1: v is a
// multiple of 64 or all rows; 4: of 16), GATHER (0: m = 4; 1: any m; else m = 8 (GATHER - 1), k a multiple of 8: 8 columns
// are one load), ALONE, ACT. On sm_80 there are no bulk copies and no clusters: plain loads.
#include "few_weight.cuh"
#include "sums.cuh"

#define THREADS (32 * WARPS)
#define PIECE (RT * (VALUES + 512 + SCALES))
#define PITCH 144  // bytes of a token's 64 columns in shared memory: no bank conflicts
constexpr int X_BYTES = SETS * NT * 8 * PITCH;
#if __CUDA_ARCH__ >= 900
constexpr int SMEM_X = WARPS * PIECE;
#else
constexpr int SMEM_X = 0;
#endif
constexpr int SMEM_BAR = SMEM_X + WARPS * X_BYTES;

struct Problem {
  const char* values;
  const char* meta;
  const unsigned char* cols;
  const char* x;           // token-major
  char* y;                 // token-major
  const Element* bias;
  const float* row_scale;    // what the results of a row are multiplied with, if the weight has 8 bits
  const float* token_scale;  // always null: sums.cuh asks for it
  const char* scales;        // of 4-bit weights: [steps][rows, 64 at a time], of ELEMENT
  int rows, k, m, v;
  int tokens, steps;
  int ldx, ldy;            // bytes from one token to the next
};

// The pieces of a warp: every WARPS-th step, the next one on its way.
struct Stream {
  const char* values;
  const char* meta;
  const char* scales;
  int stride;  // blocks of 64 rows: those of a step lie one after the other
  int blocks;  // of this piece: the last may have one less than RT
  unsigned at, bar;
  int ahead, end, phase = 0;
  int turn, count;  // of steps

  // Blocks begin at different steps, so that they don't ask for the same x at once. Where columns are gathered this did not
  // pay: there it is better that two blocks of a processor find what the other has fetched in the first cache.
  __device__ __forceinline__ int at_step(int step) const { return GATHER || step + turn < end ? step + turn : step + turn - count; }

  __device__ __forceinline__ void fetch(int lane) {
#if __CUDA_ARCH__ >= 900
    if (ahead < end && lane == 0) {
      long long from = (long long)at_step(ahead) * stride;
      expect_tx(bar, blocks * (PIECE / RT));
      bulk_copy(at, values + from * VALUES, blocks * VALUES, bar);
      bulk_copy(at + RT * VALUES, meta + from * 512, blocks * 512, bar);
      if (SCALES) bulk_copy(at + RT * (VALUES + 512), scales + from * SCALES, blocks * SCALES, bar);
    }
    ahead += WARPS;
#endif
  }

  __device__ __forceinline__ void prepare(unsigned smem, int from, int to, int warp, int lane) {
    at = smem + warp * PIECE, bar = smem + SMEM_BAR + warp * 8;
    ahead = from + warp, end = to, count = to - from;
    turn = GATHER || !count ? 0 : blockIdx.x / CLUSTER * 5 % count;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) init_bar(bar, 1);
    fence_bars();
    __syncwarp();
#endif
  }

  __device__ __forceinline__ void arrived() {
#if __CUDA_ARCH__ >= 900
    wait(bar, phase);
    phase ^= 1;
#endif
  }

  __device__ __forceinline__ void take(uint4 (&a)[4][2], unsigned (&m)[4], int block, int step, int lane) {
#if __CUDA_ARCH__ >= 900
    Shared from{at + block * VALUES, at + RT * (VALUES + 512) + block * SCALES};
#else
    long long piece = (long long)step * stride + block;
    Global from{values + piece * VALUES, scales + piece * SCALES};
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      take_strip(a[i], from, i, lane);
#if __CUDA_ARCH__ >= 900
      m[i] = lds32(at + RT * VALUES + block * 512 + i * 128 + lane * 4);
#else
      m[i] = __ldg((const unsigned*)(meta + piece * 512 + i * 128) + lane);
#endif
    }
  }

  // What was taken is no longer needed where it was.
  __device__ __forceinline__ void next(int lane) {
#if __CUDA_ARCH__ >= 900
    fence_async();
    __syncwarp();
    fetch(lane);
#endif
  }
};

#if GATHER > 1
// Which bytes of eight columns are two of a group's four: in two words each, which words, and whether they are here at all.
struct Picks {
  unsigned in[2], word[2], here[2];

  __device__ __forceinline__ Picks(unsigned cols, unsigned eight) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned one = cols >> (16 * i) & 255, two = cols >> (16 * i + 8) & 255;
      in[i] = (one & 3) * 0x22 + 0x10 | ((two & 3) * 0x22 + 0x10) << 8;
      word[i] = (one & 4 ? 0x54 : 0x10) | (two & 4 ? 0x7600 : 0x3200);
      here[i] = (one >> 3 == eight ? 0x54 : 0x10) | (two >> 3 == eight ? 0x7600 : 0x3200);
    }
  }

  // The four columns, of which those that are not here stay what they are.
  __device__ __forceinline__ void into(unsigned (&found)[2], uint4 x, bool more) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned w = __byte_perm(__byte_perm(x.x, x.y, in[i]), __byte_perm(x.z, x.w, in[i]), word[i]);
      found[i] = more ? __byte_perm(found[i], w, here[i]) : w;
    }
  }
};
#endif

#if GATHER > 1
__device__ __forceinline__ uint4 eight(const Problem& p, int token, int k) {
  return token < p.tokens && k < p.k ? __ldg((const uint4*)(p.x + (long long)token * p.ldx + k * 2)) : uint4{0, 0, 0, 0};
}
#endif

// The columns of x that a piece needs: [token][64 columns] in shared memory. A lane has one group of m columns, for every
// second token; m = 4 is copied as it is. `list`: of the rows.
__device__ __forceinline__ void gather(const Problem& p, int list, int step, int lane, unsigned to) {
#if GATHER == 0
#pragma unroll
  for (int i = 0; i < NT * 2; ++i) {
    int token = 4 * i + (lane >> 3), k = step * 64 + (lane & 7) * 8;
    int bytes = token < p.tokens ? clamp16((p.k - k) * 2) : 0;
    copy16<false>(to + token * PITCH + (lane & 7) * 16, bytes ? p.x + (long long)token * p.ldx + k * 2 : p.x, bytes);
  }
  wait_for_copies();
#else
  unsigned cols = __ldg((const unsigned*)p.cols + ((long long)list * p.steps + step) * 16 + (lane & 15)), found[NT * 4][2];
  int k = (step * 16 + (lane & 15)) * p.m;
#if GATHER > 1
#pragma unroll
  for (int e = 0; e < GATHER - 1; ++e) {
    Picks pick(cols, e);
    uint4 x[NT * 4];
#pragma unroll
    for (int i = 0; i < NT * 4; ++i) x[i] = eight(p, 2 * i + (lane >> 4), k + e * 8);
#pragma unroll
    for (int i = 0; i < NT * 4; ++i) pick.into(found[i], x[i], e);
  }
#else
#pragma unroll
  for (int i = 0; i < NT * 4; ++i) {
    int token = 2 * i + (lane >> 4);
    const u16* x = (const u16*)(p.x + (long long)token * p.ldx) + k;
    unsigned one[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      int col = (cols >> (8 * c)) & 255;
      one[c] = token < p.tokens && k + col < p.k ? __ldg(x + col) : 0;
    }
    found[i][0] = one[0] | one[1] << 16, found[i][1] = one[2] | one[3] << 16;
  }
#endif
#pragma unroll
  for (int i = 0; i < NT * 4; ++i) sts64(to + (2 * i + (lane >> 4)) * PITCH + (lane & 15) * 8, found[i][0], found[i][1]);
#endif
}

// One piece: x of the step is at `x`, as the lanes' addresses for ldmatrix.
__device__ __forceinline__ void multiply(float (&sum)[RT][4][NT][4], Stream& w, unsigned x, int step, int lane) {
  w.arrived();
#pragma unroll
  for (int block = 0; block < RT; ++block) {
    if (block >= w.blocks) break;
    uint4 a[4][2];
    unsigned m[4];
    w.take(a, m, block, step, lane);
    if (block == w.blocks - 1) w.next(lane);
#pragma unroll
    for (int set = 0; set < SETS; ++set)
#pragma unroll
      for (int tile = 0; tile < NT; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned b[4];
          ldmatrix(b, x + (set * NT + tile) * 8 * PITCH + half * 64);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (SETS == 4 && i != set) continue;
            if (half == 0)
              mma_sp<0>(sum[block][i][tile], a[i][0], b, m[i]);
            else
              mma_sp<1>(sum[block][i][tile], a[i][1], b, m[i]);
          }
        }
  }
}

// Sums of a warp into shared memory.
__device__ __forceinline__ void keep(float* sums, const float (&sum)[RT][4][NT][4]) {
  constexpr int LINE = Lines<64 * RT>::LINE, SIZE = NT * 8 * LINE;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int block = 0; block < RT; ++block)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int tile = 0; tile < NT; ++tile)
#pragma unroll
        for (int q = 0; q < 4; ++q)
          sums[warp * SIZE + (tile * 8 + 2 * t + (q & 1)) * LINE + block * 64 + i * 16 + g + 8 * (q >> 1)] = sum[block][i][tile][q];
}

extern "C" __global__ void __launch_bounds__(THREADS, ALONE ? 1 : 2)
#if CLUSTER > 1
  __cluster_dims__(CLUSTER, 1, 1)
#endif
  vnm_few(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x % CLUSTER;
  int block = blockIdx.x / CLUSTER * RT, all = (p.rows + 63) / 64;
  int from = p.steps * rank / CLUSTER, to = p.steps * (rank + 1) / CLUSTER, step = from + warp;
  Stream w{p.values + (long long)block * VALUES, p.meta + (long long)block * 512,
           p.scales + (long long)block * SCALES, all, min(RT, all - block)};
  w.prepare(smem, from, to, warp, lane);
  after_the_kernel_before();
  w.fetch(lane);
  AddUp<64 * RT, NT * 8, WARPS, THREADS, CLUSTER> add_up(p, block * 64, rank);
  float sum[RT][4][NT][4] = {};
  unsigned here = smem + SMEM_X + warp * X_BYTES;
#pragma unroll 1
  for (; step < to; step += WARPS) {
    int at = w.at_step(step);
    for (int set = 0; set < SETS; ++set) gather(p, (block * 64 + 16 * set) / p.v, at, lane, here + set * NT * 8 * PITCH);
    __syncwarp();
    multiply(sum, w, here + (lane & 7) * PITCH + (lane >> 3) * 16, at, lane);
    __syncwarp();
  }
  __syncthreads();
  keep((float*)memory, sum);
  __syncthreads();
  add_up.run(p, smem, (float*)memory);
}
