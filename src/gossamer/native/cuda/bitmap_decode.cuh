// bitmap.cu: from codes and packed words to the registers of mma.sp.m16n8k32.
//
// A piece is 16 rows x 128 columns: two pairs of steps of 32 columns. A lane has eight groups of four neighbouring columns of
// a pair. Of a group, the first plane has a word of two values, the second one has another if more are kept; see
// formats/levels/pieces.py. A register is such a word, or zero: no permutes, no table.
//
// The second plane always has the places 2 and 3. The codes of a lane's groups, four bits each, are the hardware's metadata
// but for bit 1, which says that the first plane has the places 0 and 1, if anything. A transposition within a quad puts
// metadata into the lanes that the hardware reads it from. Only the products wait for it, not the loads.
//
// Each lane has a stream of words. Word n of the columns of streams makes 128 bytes, so that no two lanes read the same
// bank. After the first pair each lane goes on in another column, where the stream of another lane ended.
//
// One multiplication adds up the numbers of words of all groups of a pair: no load waits for another one. The words of a group
// are the first one behind the groups before it, and the last one before the group behind it. Before, each load moved the
// address of the next one, and had to wait until that one had read it. 14336 x 4096 then took 43 us with 4 warps on a
// processor and 22 with 8, at any density.
//
// Instructions of a pair, 1024 elements: 16 tests, 16 loads, 16 for addresses, 12 for zeros, 25 for the codes, and 6 for the
// products of 8 tokens.
#pragma once
#include "tensor_cores.cuh"

constexpr int PIECE_BITS = 288, ROW = 128;  // bytes
constexpr unsigned SECOND = 0xeeeeeeee;     // metadata: places 2 and 3

// The metadata of the first plane.
__device__ __forceinline__ unsigned metadata(unsigned codes) {
  const unsigned stored = (codes >> 3 & ~(codes >> 1) & 0x11111111) * 15;  // all four bits
  return (codes & stored) | (~stored & 0x44444444);
}

// Bit 0 of each code: is there a word of the first plane?
__device__ __forceinline__ unsigned first_plane(unsigned codes) {
  const unsigned a = codes >> 3, b = codes >> 2, c = ~(codes >> 1), most = (a & b) | (c & (a | b));
  return (most | codes) & 0x11111111;
}

// What a lane must know to exchange codes with its quad.
struct Exchange {
  unsigned own[2];
  int by[2];

  __device__ __forceinline__ explicit Exchange(int lane)
    : own{lane & 1 ? 0xf0f0f0f0 : 0x0f0f0f0f, lane & 2 ? 0xff00ff00 : 0x00ff00ff}, by{lane & 1 ? 4 : 28, lane & 2 ? 8 : 24} {}

  // Code t of lane u becomes code u of lane t, in both halves of the words.
  __device__ __forceinline__ unsigned operator()(unsigned word) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned other = __shfl_xor_sync(0xffffffff, word, 1 << i);
      word = (word & own[i]) | (__funnelshift_r(other, other, by[i]) & ~own[i]);
    }
    return word;
  }
};

// The registers of a pair, by step and plane; `at` moves to the end of the pair.
__device__ __forceinline__ void decode(unsigned (&a)[2][2][4], unsigned& at, unsigned codes) {
  const unsigned first = first_plane(codes), counts = first + (codes >> 1 & 0x11111111);
  const unsigned before = counts * 0x11111110;  // words of the groups before
  unsigned begin[9] = {at};
#pragma unroll
  for (int n = 1; n < 8; ++n) {
    const unsigned words = before & 15u << 4 * n;
    begin[n] = at + (n == 1 ? words * 8 : words >> (4 * n - 7));
  }
  at = begin[8] = begin[7] + (counts >> 28) * ROW;
#pragma unroll
  for (int n = 0; n < 8; ++n) {  // high, step, upper
    const int step = n >> 1 & 1, r = (n & 1) * 2 + (n >> 2);
    a[step][0][r] = word_if<0>(begin[n], first, 1u << 4 * n);
    a[step][1][r] = word_if<-ROW>(begin[n + 1], codes, 2u << 4 * n);
  }
}
