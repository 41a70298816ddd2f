// D = act(W X + bias) for a weight in packed V:N:M and some tokens: bound by the bytes of W. wgmma.sp, on sm_90a.
//
// A cluster of CLUSTER blocks has 64 WM rows and NB tokens; its blocks share the columns. Four threads of a block keep a
// ring of STAGES steps full: W by bulk copies, X (token-major, compacted where m > 4) by the copy engine. WM x WK warpgroups
// multiply, each 64 rows and every WK-th step; sums are added up in shared memory, over the cluster by distributed shared
// memory. One thread would be too few to ask for all the bytes, and one warpgroup to multiply them: a step of 4.6 KB took
// 220 ns, whatever the tokens.
// Boxes of X have no more lines than there are tokens: lines beyond X are slow, 0.2 us each at 14336 x 4096.
// AHEAD: the kernel before this one makes X, and began after all before it had ended. So W, which it does not write, can be
// asked for while it runs, for the first AHEAD steps.
//
// Measured with 32 tokens: 18.5, 11.6, 12.3 and 8.2 us. One warpgroup for 64 rows and two for 128 are best, two for the
// columns of 64 rows up to 32 tokens. Tried, and slower: two warpgroups for the columns of 128 rows (2 to 10 %, 1.7 times as
// long with 128 tokens of 8 bits), more than 4 steps AHEAD for 128 rows or 8 for 64 (3 to 5 %), registers for two blocks a
// processor (no change), clusters of 4 where pairs fill the GPU (1.5 times as long: they don't all run at once).
//
// Floor: the bytes of W. 14336 x 4096 on an H200 at 4.3 TB/s: 2:4 66 MB, 15.4 us; 2:8 33 MB, 7.7; e4m3 36.7 and 18.4 MB, 8.5
// and 4.3 us. Tensor cores need 4.9 us for 64 tokens at 2:4, and X comes from the second cache, 59 MB then.
//
// GROUP: up to three weights that are multiplied by the same X, each with arrays of its own; their results lie side by side.
// GATED: two of one shape, and their results are multiplied: see many_tiles.cuh. WM is 2 and WK 1; all tiles are full.
// EXPERTS: several weights of one shape, one below the other, and tokens that are sorted by the weight that they are for.
// Each has tiles of its own; which of them exist is only known on the GPU, so there may be blocks without a tile. Biases and
// scales of rows are those of all weights, one below the other; scales of tokens those of all tokens.
//
// Macros: ELEMENT, WEIGHT, NB, STAGES, ACT as in vnm_many.cu; WM (1 or 2), WK (1 or 2), CLUSTER, AHEAD, GROUP or EXPERTS (or
// none), GATED.
// The rest is as vnm_many.cu would have it: FEEDERS = 128, WN = MT = 1, OUT = GATHER = 0, X_TOKENS = 1.
#include "many_feed.cuh"
#include "many_multiply.cuh"
#include "sums.cuh"

#define THREADS (FEEDERS + 128 * WM * WK)
constexpr int ASKING = 4;  // threads, each of a warp of its own

struct Range {  // of steps
  int first, count;
  __device__ __forceinline__ Range(const Problem& p, int rank) : first(p.steps * rank / CLUSTER), count(p.steps * (rank + 1) / CLUSTER - first) {}
};

// Every ASKING-th step of a tile, by one thread.
__device__ __forceinline__ void produce(const Problem& p, const Second& second, const Map& x, unsigned smem, int tile, int n0, Range steps, int which) {
  const int boxes = (min(NB, p.tokens - n0) + p.lines - 1) / p.lines, bytes = boxes * p.lines * 128;
  const int ahead = min(min(AHEAD, STAGES), steps.count);
  for (int s = which; s < ahead; s += ASKING) fetch_w(p, second, smem, tile, steps.first + s, s, bytes);
  wait_for_the_kernel_before();
  Ring ring;
  ring.next(which);
#pragma unroll 1
  for (int s = which; s < steps.count; s += ASKING) {
    if (s >= STAGES) wait(empty_bar(smem, ring.slot), ring.phase ^ 1);
    if (s >= ahead) fetch_w(p, second, smem, tile, steps.first + s, ring.slot, bytes);
    for (int i = 0; i < boxes; ++i)
      tensor_load(smem + ring.slot * B_BYTES + i * p.lines * 128, &x, (steps.first + s) * 64, n0 + i * p.lines, full_bar(smem, ring.slot));
    ring.next(ASKING);
  }
}

__device__ __forceinline__ void keep(const Sums& acc, float* sums, int wm, int warp, int lane) {
  constexpr int LINE = Lines<BM>::LINE;
  int row = wm * 64 + warp * 16 + (lane >> 2), token = 2 * (lane & 3);
#pragma unroll
  for (int j = 0; j < NB / 8; ++j)
#pragma unroll
    for (int q = 0; q < 4; ++q) sums[(8 * j + token + (q & 1)) * LINE + row + 8 * (q >> 1)] = float(acc[0][4 * j + q]);
}

#ifdef GROUP
struct Others {  // the second weight and the third, and the number of their first tile; all tiles, if there is no third
  const char* values[2];
  const char* meta[2];
  int first[2];
};

// The problem of the weight that a tile belongs to; `tile` becomes its number there. Weights have full tiles.
__device__ __forceinline__ Problem one_of(const Problem& all, const Others& others, int& tile) {
  Problem p = all;
  const int second = others.first[0], third = others.first[1];
  int begin = 0, end = second;
  if (tile >= third)
    p.values = others.values[1], p.meta = others.meta[1], begin = third, end = all.rows / BM;
  else if (tile >= second)
    p.values = others.values[0], p.meta = others.meta[0], begin = second, end = third;
  p.rows = (end - begin) * BM;
  p.y += begin * BM * 2ll;
  tile -= begin;
  return p;
}
#endif

#ifdef EXPERTS
struct Experts {
  const int* ends;  // of each: the number of the first token that is not its own
  int count;
  int tiles;  // of rows, of each
};

struct Part {  // of the tokens of an expert
  int expert = -1, first, end;
};

// Part number `number` of all tokens; asked by a whole warp. Tokens of an expert are in parts of NB.
__device__ __forceinline__ Part part_of(const Experts& experts, int number, int tokens) {
  constexpr unsigned ALL = 0xffffffffu;
  const int lane = threadIdx.x & 31;
  Part part;
  int before = 0;
  for (int first = 0; first < experts.count && part.expert < 0; first += 32) {
    const int at = first + lane;
    const int begin = at && at < experts.count ? min(max(experts.ends[at - 1], 0), tokens) : 0;
    const int end = at < experts.count ? min(max(experts.ends[at], 0), tokens) : 0;  // wrong ones reach nothing outside
    const int parts = max(end - begin + NB - 1, 0) / NB;
    int through = parts;  // of this expert and those before it
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int other = __shfl_up_sync(ALL, through, by);
      if (lane >= by) through += other;
    }
    int lanes = number >= before + through;  // with all parts before the wanted one: count them
#pragma unroll
    for (int by = 1; by < 32; by *= 2) lanes += __shfl_xor_sync(ALL, lanes, by);
    const int from = lanes & 31, skipped = number - before - __shfl_sync(ALL, through - parts, from);
    if (lanes < 32) part.expert = first + lanes;
    part.first = __shfl_sync(ALL, begin, from) + skipped * NB, part.end = __shfl_sync(ALL, end, from);
    before += __shfl_sync(ALL, through, 31);
  }
  return part;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
  __cluster_dims__(CLUSTER, 1, 1)
#endif
#ifdef GROUP
  vnm_some(const __grid_constant__ Problem all, const __grid_constant__ Map x, const __grid_constant__ Others others) {
#elif defined EXPERTS
  vnm_some(const __grid_constant__ Problem all, const __grid_constant__ Map x, const __grid_constant__ Experts experts) {
  static_assert(AHEAD == 0);
#elif GATED
  vnm_some(const __grid_constant__ Problem p, const __grid_constant__ Map x, const __grid_constant__ Second second) {
  static_assert(WM == 2 && WK == 1);
#else
  vnm_some(const __grid_constant__ Problem p, const __grid_constant__ Map x) {
#endif
  static_assert(STAGES % ASKING == 0);  // a slot is always filled by the same thread, which knows how often it was
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  int rank = blockIdx.x % CLUSTER, tile = blockIdx.x / CLUSTER, n0 = blockIdx.y * NB;
#ifdef GROUP
  const Problem p = one_of(all, others, tile);
#endif
#ifdef EXPERTS
  wait_for_the_kernel_before();  // it may have written where the tokens of each end
  const Part part = part_of(experts, blockIdx.y, all.tokens);
  if (part.expert < 0) return;  // all blocks of the cluster
  n0 = part.first, tile += part.expert * experts.tiles;
  Problem p = all;
  p.tokens = part.end;
  p.y -= (long long)part.expert * experts.tiles * BM * 2;  // rows of all experts are counted, a result has those of one
#endif
#if !GATED
  const Second second{};
#endif
  Range steps(p, rank);
  if (blocks_of(p, tile) < SPAN) {  // below the last rows: valid metadata, if unused
    for (int i = threadIdx.x; i < STAGES * META_BYTES / 4; i += blockDim.x) *(unsigned*)(memory + SMEM_META + i * 4) = 0x44444444;
    fence_async();
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_bar(full_bar(smem, i), 1);
      init_bar(empty_bar(smem, i), WM * 4);
    }
    fence_bars();
  }
  __syncthreads();
  let_the_next_kernel_start();
  int group = (int)threadIdx.x / 128 - FEEDERS / 128, warp = (threadIdx.x / 32) & 3, lane = threadIdx.x & 31;
  if (group < 0 && lane == 0) produce(p, second, x, smem, tile, n0, steps, warp);
  __syncwarp();
  wait_for_the_kernel_before();
  AddUp<BM, NB, WK, THREADS, CLUSTER> add_up(p, tile * SPAN * 64, rank, n0);
#if GATED
  add_up.four.see(second.row_scale);
#endif
  if (group < 0) {
    __syncthreads();  // nobody reads the ring any more
  } else {
    int half = group / WM;  // of the steps
    Consumer c{smem, group % WM, 0, warp, lane};
    c.by = WK;
    c.ring.next(half);
    Sums acc;
    c.multiply(acc, (steps.count - half + WK - 1) / WK);
    __syncthreads();
    keep(acc, (float*)memory + half * NB * Lines<BM>::LINE, c.wm, warp, lane);
  }
  __syncthreads();
  add_up.run(p, smem, (float*)memory);
}
