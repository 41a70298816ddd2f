// The largest KEPT of every GROUP neighbours of many arrays, in one launch: masks and sparse weights from dense ones, after
// a step of a straight-through method. A block row (blockIdx.y) has an array, a thread a group. Of equals the first stays.
// A group with a NaN is left as it was, and *wrong becomes 1. ITEM is the size of an element: magnitudes are compared as
// integers without the sign bit, which is the order of all of torch's floating-point types.
//
// Floor: a weight is read once, and written once with a byte of mask: 9 bytes of a float32. The host's way (compare all
// pairs of a group, sum, copy the mask, copy the weights, clear them) moves about 60, in eleven launches a layer.
#include "numbers.cuh"

#if ITEM == 2
typedef u16 Bits;
#elif ITEM == 4
typedef u32 Bits;
#else
typedef u64 Bits;
#endif

constexpr int ARRAYS = 64;
constexpr Bits MAGNITUDE = Bits(~Bits(0)) >> 1;

struct alignas(ITEM * GROUP > 16 ? 16 : ITEM * GROUP) Values {
  Bits e[GROUP];
};
struct alignas(GROUP > 16 ? 16 : GROUP) Flags {
  u8 e[GROUP];
};
struct Table {
  const Bits* dense[ARRAYS];
  Bits* sparse[ARRAYS];
  u8* mask[ARRAYS];
  i64 groups[ARRAYS];
};

extern "C" __global__ void __launch_bounds__(256) choose(const __grid_constant__ Table table, Bits infinity, int* wrong) {
  const Values* const dense = reinterpret_cast<const Values*>(table.dense[blockIdx.y]);
  Values* const sparse = reinterpret_cast<Values*>(table.sparse[blockIdx.y]);
  Flags* const mask = reinterpret_cast<Flags*>(table.mask[blockIdx.y]);
  const i64 groups = table.groups[blockIdx.y], step = i64(gridDim.x) * 256;
  for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; i < groups; i += step) {
    Values held = dense[i];
    Flags kept;
    bool number = true;
#pragma unroll
    for (int e = 0; e < GROUP; e++) {
      const Bits mine = held.e[e] & MAGNITUDE;
      number = number && mine <= infinity;
      int before = 0;
#pragma unroll
      for (int o = 0; o < GROUP; o++) {
        const Bits other = held.e[o] & MAGNITUDE;
        before += o < e ? other >= mine : o > e && other > mine;
      }
      kept.e[e] = before < KEPT;
    }
    if (!number) {
      *wrong = 1;
      continue;
    }
#pragma unroll
    for (int e = 0; e < GROUP; e++)
      if (!kept.e[e]) held.e[e] = 0;
    sparse[i] = held;
    mask[i] = kept;
  }
}
