// y = act(x W' + bias) for a weight in PackedVNM and up to 8 NT tokens (NT = 1, 2, 4, 8): bound by the bytes of W.
//
// A cluster of blocks takes BLOCKS x 64 rows; its blocks share the columns, and in a block WARPS warps do. A warp keeps DEPTH pieces
// of 64 rows x 64 compacted columns on their way into shared memory by bulk copies of its own, in fragment order, and
// multiplies by mma.sp.m16n8k32. The columns of x that are needed are gathered into shared memory, token by token. Sums
// are added in a fixed order: by warps, then by blocks over distributed shared memory.
//
// Floor: the bytes of W, 1.125 * 2/m * 2 rows k, at 4.3 TB/s on an H200: 14336 x 4096 at 2:8 is 33 MB, 7.7 us.
//
// Macros: ELEMENT (0 float16, 1 bfloat16), NT, BLOCKS (1 if SETS = 4), WARPS, DEPTH, CLUSTER, SETS (1: v is a multiple of 64 or all rows; 4: of 16), GATHER (0: m = 4 or x
// holds the compacted columns already), ACT. On sm_80 there are no bulk copies and no clusters: plain loads.
#include "tensor_cores.cuh"

#define THREADS (32 * WARPS * BLOCKS)
#define PIECE 4608                                                             // bytes of 64 x 64
constexpr int CHUNK = NT * SETS >= 32 * BLOCKS ? 1 : 32 * BLOCKS / (NT * SETS);  // steps whose x is staged at once
constexpr int PITCH = CHUNK * 128 + 16;                                        // bytes of a token: no bank conflicts
constexpr int SMEM_X = BLOCKS * WARPS * DEPTH * PIECE;
constexpr int SMEM_BAR = SMEM_X + SETS * NT * 8 * PITCH;

struct Problem {
  const char* values;
  const char* meta;
  const unsigned char* cols;
  const char* x;           // token-major
  char* y;                 // token-major
  const Element* bias;
  int rows, k, m, v;
  int tokens, steps;
  int ldx, ldy;            // bytes from one token to the next
};

// The pieces of a warp: every WARPS-th step from `step` on, DEPTH of them on their way.
struct Stream {
  const char* values;
  const char* meta;
  int stride;  // blocks of 64 rows: those of a step lie one after the other
  unsigned at, bar;
  int ahead, end, slot = 0, phase = 0;

  __device__ __forceinline__ void fetch(int to, int lane) {
#if __CUDA_ARCH__ >= 900
    if (ahead < end && lane == 0) {
      expect_tx(bar + to * 8, PIECE);
      bulk_copy(at + to * PIECE, values + (long long)ahead * stride * 4096, 4096, bar + to * 8);
      bulk_copy(at + to * PIECE + 4096, meta + (long long)ahead * stride * 512, 512, bar + to * 8);
    }
    ahead += WARPS;
#endif
  }

  __device__ __forceinline__ void begin(unsigned smem, int step, int last, int warp, int lane) {
    at = smem + warp * DEPTH * PIECE, bar = smem + SMEM_BAR + warp * DEPTH * 8;
    ahead = step, end = last;
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
      for (int i = 0; i < DEPTH; ++i) init_bar(bar + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    for (int i = 0; i < DEPTH; ++i) fetch(i, lane);
#endif
  }

  __device__ __forceinline__ void take(uint4 (&a)[4][2], unsigned (&m)[4], int step, int lane) {
#if __CUDA_ARCH__ >= 900
    wait(bar + slot * 8, phase);
    unsigned from = at + slot * PIECE;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i][0] = lds128(from + i * 1024 + lane * 16);
      a[i][1] = lds128(from + i * 1024 + 512 + lane * 16);
      m[i] = lds32(from + 4096 + i * 128 + lane * 4);
    }
    fence_async();
    __syncwarp();
    fetch(slot, lane);
    if (++slot == DEPTH) slot = 0, phase ^= 1;
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4* from = (const uint4*)(values + (long long)step * stride * 4096 + i * 1024) + lane;
      a[i][0] = __ldg(from), a[i][1] = __ldg(from + 32);
      m[i] = __ldg((const unsigned*)(meta + (long long)step * stride * 512 + i * 128) + lane);
    }
#endif
  }
};

// x at the compacted columns of `count` steps from `step` on: [set][token][column].
__device__ __forceinline__ void stage(const Problem& p, unsigned smem, int row0, int step, int count) {
#if GATHER
  for (int at = threadIdx.x; at < SETS * count * 16; at += THREADS) {  // four columns
    int group = at % (count * 16), set = at / (count * 16), k = (step * 16 + group) * p.m;
    int row = row0 + 16 * set, list = (row < p.rows ? row : p.rows - 1) / p.v;
    unsigned cols = __ldg((const unsigned*)p.cols + (long long)list * p.steps * 16 + step * 16 + group);
    const char* from[4];
    bool in[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int c = k + ((cols >> (8 * i)) & 255);
      in[i] = c < p.k;
      from[i] = p.x + (in[i] ? c * 2 : 0);
    }
    unsigned to = smem + SMEM_X + set * NT * 8 * PITCH + group * 8;
#pragma unroll 8
    for (int token = 0; token < p.tokens; ++token) {
      unsigned h[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        h[i] = in[i] ? __ldg((const u16*)from[i]) : 0;
        from[i] += p.ldx;
      }
      sts64(to + token * PITCH, h[0] | h[1] << 16, h[2] | h[3] << 16);
    }
  }
#else
  for (int at = threadIdx.x; at < p.tokens * count * 8; at += THREADS) {  // eight columns of a token
    int eight = at % (count * 8), token = at / (count * 8), k = step * 64 + eight * 8;
    int bytes = clamp16((p.k - k) * 2);
    copy16<false>(smem + SMEM_X + token * PITCH + eight * 16, bytes ? p.x + (long long)token * p.ldx + k * 2 : p.x, bytes);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ __forceinline__ void multiply(float (&sum)[4][NT][4], const uint4 (&a)[4][2], const unsigned (&m)[4], unsigned x) {
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
            mma_sp<0>(sum[i][tile], a[i][0], b, m[i]);
          else
            mma_sp<1>(sum[i][tile], a[i][1], b, m[i]);
        }
      }
}

// Sums of the warps, then of the blocks, in their order; bias and activation; out.
__device__ __forceinline__ void finish(const Problem& p, unsigned smem, float* sums, float (&sum)[4][NT][4], int row0, int rank) {
  constexpr int SIZE = NT * 8 * 64;  // [token][64 rows] of a block of rows
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int tile = 0; tile < NT; ++tile)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        sums[warp * SIZE + (tile * 8 + 2 * t + (q & 1)) * 64 + i * 16 + g + 8 * (q >> 1)] = sum[i][tile][q];
  __syncthreads();
  for (int at = threadIdx.x; at < SIZE * BLOCKS; at += THREADS) {
    float* from = sums + at / SIZE * WARPS * SIZE + at % SIZE;
    float total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) total += from[i * SIZE];
    *from = total;
  }
  __syncthreads();
  sync_cluster<CLUSTER>();
  for (int at = threadIdx.x + THREADS * rank; at < p.tokens * 64 * BLOCKS; at += THREADS * CLUSTER) {
    int block = at / 64 % BLOCKS, token = at / 64 / BLOCKS, row = row0 + block * 64 + at % 64;
    int from = block * WARPS * SIZE + token * 64 + at % 64;
    float total = CLUSTER == 1 ? sums[from] : 0;
    if (CLUSTER > 1)
#pragma unroll
      for (int i = 0; i < CLUSTER; ++i) total += load_at(smem + from * 4, i);
    if (row < p.rows) {
      if (p.bias) total += widen(p.bias[row]);
      *((u16*)(p.y + (long long)token * p.ldy) + row) = narrow(act(total));
    }
  }
  sync_cluster<CLUSTER>();  // another block may still read this one's sums
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if CLUSTER > 1
  __cluster_dims__(CLUSTER, 1, 1)
#endif
  vnm_few(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x % CLUSTER;
  int row0 = blockIdx.x / CLUSTER * BLOCKS * 64, last = (p.rows - 1) / 64;
  int block = row0 / 64 + warp / WARPS, first = warp % WARPS;
  block = block < last ? block : last;  // rows that don't exist are computed and not stored
  int from = p.steps * rank / CLUSTER, to = p.steps * (rank + 1) / CLUSTER;
  Stream w{p.values + (long long)block * 4096, p.meta + (long long)block * 512, last + 1};
  w.begin(smem, from + first, to, warp, lane);
  for (int at = threadIdx.x; at < SETS * NT * 8 * PITCH / 16; at += THREADS)  // tokens that don't exist are zeros
    if (at * 16 / PITCH % (NT * 8) >= p.tokens) sts128(smem + SMEM_X + at * 16, uint4{0, 0, 0, 0});
  float sum[4][NT][4] = {};
  for (int begin = from, step = from + first; begin < to; begin += CHUNK) {
    int end = begin + CHUNK < to ? begin + CHUNK : to;
    if (begin > from) __syncthreads();
    stage(p, smem, row0, begin, end - begin);
    __syncthreads();
#pragma unroll 1
    for (; step < end; step += WARPS) {
      uint4 a[4][2];
      unsigned m[4];
      w.take(a, m, step, lane);
      multiply(sum, a, m, smem + SMEM_X + (lane & 7) * PITCH + (step - begin) * 128 + (lane >> 3) * 16);
    }
  }
  __syncthreads();
  finish(p, smem, (float*)memory, sum, row0, rank);
}
