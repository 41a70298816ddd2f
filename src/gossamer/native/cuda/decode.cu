// Attention of one query a head over a cache, where a mask allows it: softmax(scale Q K^T) V for 16-bit Q, K, V.
//
// The queries that share a key head are the rows of one matrix, 16 at most, so that K and V are read once for all of them. A
// block has a key head of a sequence, and the keys of one of gridDim.y parts. It lists the groups of 16 keys of which the mask
// allows any; others are not read. Each warp takes every fourth of the list: products by dense mma.sync, a running maximum and
// sum for each row; K and V of its next group are copied meanwhile. At the end the four warps' results are combined, or
// written as parts, which `combine` in attention.cu combines.
//
// Floor: the bytes of the keys and values that are allowed. 128 sequences with 8 key heads of 128 columns and 112 of 256
// places in use: 59 MB, 13.7 us at 4.3 TB/s. With few sequences the latency of the mask and of K and V, one after the other.
//
// Macros: ELEMENT, WIDTH (of a head: a multiple of 16, up to 128), MASKED, PARTS (are the results those of parts?).
#include "numbers.cuh"

constexpr int KEYS = 16, WARPS = 4, THREADS = 32 * WARPS;
constexpr int LINE = WIDTH * 2 + 16;  // bytes of a row in shared memory: an odd number of 16-byte chunks, so no conflicts
constexpr int TILE = KEYS * LINE, STAGE = 2 * TILE;  // K, V
constexpr int STEPS = WIDTH / 16, COLUMNS = WIDTH / 8;
constexpr int SMEM_COUNTS = WARPS * 2 * STAGE, SMEM_LIST = SMEM_COUNTS + 64;
constexpr int ROW = WIDTH + 4;  // floats of a row of results in shared memory

struct Places {  // of Q, K, V and the mask: elements from one sequence, head and key to the next
  i64 q_batch, q_head, k_batch, k_head, k_row, v_batch, v_head, v_row, mask_batch;
};

extern __shared__ __align__(1024) unsigned char memory[];

// Four bytes, each 0 or 1, as four bits.
__device__ __forceinline__ u32 four_bits(u32 bytes) { return bytes * 0x01020408u >> 24 & 15u; }

// The keys of a group that are allowed, a bit each.
__device__ __forceinline__ u32 allowed(const u8* mask, i64 first, i64 keys) {
  if (MASKED && first + KEYS <= keys && u64(mask + first) % 16 == 0) {
    const uint4 m = __ldg((const uint4*)(mask + first));
    return four_bits(m.x) | four_bits(m.y) << 4 | four_bits(m.z) << 8 | four_bits(m.w) << 12;
  }
  u32 bits = 0;
#pragma unroll
  for (int i = 0; i < KEYS; ++i)
    if (first + i < keys && (!MASKED || mask[first + i])) bits |= 1u << i;
  return bits;
}

// The groups of this block that have an allowed key, in order, each with its bits: how many.
__device__ __forceinline__ int list_groups(const u8* mask, i64 begin, i64 end, i64 keys, unsigned smem) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int total = 0;
  for (i64 first = begin; first < end; first += THREADS) {
    const i64 group = first + threadIdx.x;
    const u32 bits = group < end ? allowed(mask, group * KEYS, keys) : 0u;
    int before = bits != 0;  // including this one
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, by);
      if (lane >= by) before += other;
    }
    int* const counts = (int*)(memory + SMEM_COUNTS);
    if (lane == 31) counts[warp] = before;
    __syncthreads();
    int place = total + before - 1;
    for (int w = 0; w < WARPS; ++w) place += w < warp ? counts[w] : 0, total += counts[w];
    if (bits) ((u32*)(memory + SMEM_LIST))[place] = u32(group - begin) << 16 | bits;
    __syncthreads();
  }
  return total;
}

__device__ __forceinline__ void fetch(unsigned to, const Element* from, i64 row, u32 bits) {
  for (int c = threadIdx.x & 31; c < KEYS * COLUMNS; c += 32) {
    const int key = c / COLUMNS, chunk = c % COLUMNS;
    const bool there = bits >> key & 1;  // else zeros: what is in a place of the cache that was never written is not read
    copy16<false>(to + key * LINE + chunk * 16, from + (there ? key * row : 0) + chunk * 8, there ? 16 : 0);
  }
}

__device__ __forceinline__ float over_quad(float mine, bool largest) {
#pragma unroll
  for (int by = 1; by < 4; by *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, mine, by);
    mine = largest ? fmaxf(mine, other) : mine + other;
  }
  return mine;
}

struct State {  // of 16 rows, of which a thread has g and g + 8
  float o[COLUMNS][4] = {};
  float top[2], sum[2] = {0.f, 0.f};
};

// 16 keys more.
__device__ __forceinline__ void attend(State& state, const unsigned (&q)[STEPS][4], unsigned at, u32 bits, float scale, int lane) {
  const float NONE = __int_as_float(0xff800000);  // minus infinity
  const int t = lane % 4;
  float s[2][4];
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[j][e] = bits >> (8 * j + 2 * t + e % 2) & 1 ? 0.f : NONE;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    unsigned b[4];
    ldmatrix(b, at + (lane / 16 * 8 + lane % 8) * LINE + (2 * step + lane / 8 % 2) * 16);
    mma(s[0], q[step], b[0], b[1]);
    mma(s[1], q[step], b[2], b[3]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float most = fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1]));
    const float highest = fmaxf(state.top[h], over_quad(most, true));
    const float less = highest == NONE ? 0.f : highest * scale;
    const float again = exp2_of(state.top[h] * scale - less);  // 0 for the first keys
    state.top[h] = highest;
    state.sum[h] *= again;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float p = exp2_of(s[j][2 * h + e] * scale - less);
        state.sum[h] += p;
        s[j][2 * h + e] = p;
      }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) state.o[c][2 * h] *= again, state.o[c][2 * h + 1] *= again;
  }
  unsigned p[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] = pack2(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
#pragma unroll
  for (int c = 0; c < COLUMNS; c += 2) {
    unsigned b[4];
    ldmatrix_turned(b, at + TILE + lane % 16 * LINE + (c + lane / 16) * 16);
    mma(state.o[c], p, b[0], b[1]);
    mma(state.o[c + 1], p, b[2], b[3]);
  }
}

// Results of a warp into shared memory: for each row its sums, its largest score and the sum of its weights.
__device__ __forceinline__ void keep(const State& state, int warp, int lane, int rows, float scale) {
  const int g = lane / 4, t = lane % 4;
  float* const all = (float*)memory;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = over_quad(state.sum[h], false);
    const int row = g + 8 * h;
    if (row >= rows) continue;
    float* const to = all + (warp * rows + row) * ROW;
    if (t == 0) to[WIDTH] = state.top[h] * scale, to[WIDTH + 1] = total;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) to[c * 8 + t * 2] = state.o[c][2 * h], to[c * 8 + t * 2 + 1] = state.o[c][2 * h + 1];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
decode(const Element* q, const Element* k, const Element* v, const u8* mask, Places at, Element* out, float* part, i64 keys, int heads,
       int rows, float scale) {
  const float NONE = __int_as_float(0xff800000);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int head = blockIdx.x % heads, split = blockIdx.y, splits = gridDim.y;
  const i64 batch = blockIdx.x / heads, groups = (keys + KEYS - 1) / KEYS;
  const i64 begin = groups * split / splits, end = groups * (split + 1) / splits;
  const unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  after_the_kernel_before();
  const Element* const own_k = k + batch * at.k_batch + head * at.k_head + begin * KEYS * at.k_row;
  const Element* const own_v = v + batch * at.v_batch + head * at.v_head + begin * KEYS * at.v_row;
  const int count = list_groups(mask + batch * at.mask_batch, begin, end, keys, smem);

  unsigned a[STEPS][4];
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = g + i % 2 * 8;
      const Element* from = q + batch * at.q_batch + (i64(head) * rows + r) * at.q_head + s * 16 + i / 2 * 8 + t * 2;
      a[s][i] = r < rows ? *(const unsigned*)from : 0u;
    }

  State state;
  state.top[0] = state.top[1] = NONE;
  const u32* const list = (const u32*)(memory + SMEM_LIST);
  const unsigned own = smem + warp * 2 * STAGE;
  if (warp < count) {
    const u32 entry = list[warp];
    fetch(own, own_k + (entry >> 16) * KEYS * at.k_row, at.k_row, entry);
    fetch(own + TILE, own_v + (entry >> 16) * KEYS * at.v_row, at.v_row, entry);
  }
  mark_copies();
  int stage = 0;
  for (int i = warp; i < count; i += WARPS) {
    if (i + WARPS < count) {
      const u32 entry = list[i + WARPS];
      const unsigned to = own + (stage ^ 1) * STAGE;
      fetch(to, own_k + (entry >> 16) * KEYS * at.k_row, at.k_row, entry);
      fetch(to + TILE, own_v + (entry >> 16) * KEYS * at.v_row, at.v_row, entry);
    }
    mark_copies();
    wait_for_groups<1>();
    __syncwarp();
    attend(state, a, own + stage * STAGE, list[i] & 0xffff, scale, lane);
    __syncwarp();  // before the next copies into this stage
    stage ^= 1;
  }
  wait_for_copies();
  __syncthreads();
  keep(state, warp, lane, rows, scale);
  __syncthreads();

  const float* const all = (const float*)memory;
  for (int i = threadIdx.x; i < rows * WIDTH / 2; i += THREADS) {
    const int row = i / (WIDTH / 2), column = i % (WIDTH / 2) * 2;
    float top = NONE;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, all[(w * rows + row) * ROW + WIDTH]);
    const float less = top == NONE ? 0.f : top;
    float total = 0.f;
    float2 o = {0.f, 0.f};
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float* from = all + (w * rows + row) * ROW;
      const float weight = exp2_of(from[WIDTH] - less);
      total += weight * from[WIDTH + 1];
      o.x += weight * from[column], o.y += weight * from[column + 1];
    }
    const i64 place = (batch * heads + head) * rows + row;
    if (PARTS) {
      const i64 places = i64(gridDim.x) * rows, mine = split * places + place;
      *(float2*)(part + mine * WIDTH + column) = o;
      float* const tops = part + splits * places * WIDTH;
      if (column == 0) tops[mine] = top, tops[splits * places + mine] = total;
    } else {
      const float by = total > 0.f ? 1.f / total : total == total ? 0.f : total;
      *(u32*)(out + place * WIDTH + column) = pack2(o.x * by, o.y * by);
    }
  }
}
