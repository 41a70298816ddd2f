// bitmap.cu: from codes and packed words to the registers of mma.sp.m16n8k32.
//
// A piece is 16 rows x 256 columns: four pairs of steps of 32 columns. A lane has eight groups of four neighbouring columns of
// a pair. Of a group, the first plane has a word of two values, the second one has another if more are kept; see
// formats/levels/pieces.py. A register is such a word, or zero: no permutes, no table.
//
// The second plane always has the places 2 and 3. The codes of the groups, four bits each, are stored in the order of the
// hardware's metadata, and are these but for bit 1, which says that the first plane has the places 0 and 1, if anything. A
// transposition within a quad makes them the codes of a lane's own groups.
//
// Each lane has a stream of words. Word n of the columns of streams makes 128 bytes, so that no two lanes read the same
// bank. After half of the piece each lane goes on in another column, where the stream of another lane ended.
//
// Instructions of a pair, 1024 elements: 16 tests, 16 loads, 16 steps of the stream and 8 copies that the compiler adds, 10 for
// zeros, 14 for the codes, and 6 for the products of 8 tokens.
#pragma once
#include "tensor_cores.cuh"

constexpr int PIECE_BITS = 544, ROW = 128;  // bytes
constexpr unsigned SECOND = 0xeeeeeeee;     // metadata: places 2 and 3

// The metadata of the first plane.
__device__ __forceinline__ unsigned metadata(unsigned codes) {
  const unsigned stored = (codes >> 3 & ~(codes >> 1) & 0x11111111) * 15;  // all four bits
  return (codes & stored) | (~stored & 0x44444444);
}

// Bits 0 and 3 of each code: is there a word of the first plane?
__device__ __forceinline__ unsigned first_plane(unsigned codes) {
  const unsigned a = codes, b = codes << 1, c = ~(codes << 2), most = (a & b) | (c & (a | b));
  return (most & 0x88888888) | (codes & 0x77777777);
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

// The registers of step `STEP` of a pair, of both planes.
template <int STEP>
__device__ __forceinline__ void decode(unsigned (&a)[2][4], unsigned& at, unsigned own, unsigned first) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {  // upper, high
    const int shift = 16 * (r & 1) + 4 * (2 * STEP + (r >> 1));
    a[0][r] = next_word(at, first, 9u << shift);
    a[1][r] = next_word(at, own, 2u << shift);
  }
}
