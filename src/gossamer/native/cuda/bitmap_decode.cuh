// bitmap.cu: from bits and packed values to the registers of mma.m16n8k16.
//
// A piece is 64 rows x 64 columns: four steps of 16 columns, each of four strips of 16 rows. A lane has eight elements of a
// strip, a byte of bits; their values lie side by side, after those of the lanes before it. A word has the bytes of four
// lanes; words are at [step][word of a strip, 8][strip, 4], so that a lane reads those of all strips of a step at once.
// Behind the words, in the same order and 16 bits each, is the number of values before those of each word.
//
// What was tried. Instructions are what bounds it: 600 a warp and piece, half of them for units that take one every other
// cycle. At 14336 x 4096, 80 % and 8 tokens on an H200, 20.3 us:
// - the numbers of values added up in the kernel, 256 bytes of a piece saved: 660 instructions, 21.9 us;
// - one load of 32 bits for a pair of elements in place of two of 16, and sums of products of bytes for their addresses:
//   88 loads of shared memory for 136, but 760 instructions, 24.1 us;
// - four elements at a time, whose loads meet no bank conflicts up to 50 %: 800 instructions, 25 us; at 50 % 26.2 for 28.4.
#pragma once
#include "tensor_cores.cuh"

constexpr int WORDS = 512, PIECE_BITS = WORDS + 256;  // bytes

// What a lane needs for all strips. A pair of elements has none of the next two values, the first one low, the first one
// high, or both: a byte of each table says what that means.
struct Decoder {
  unsigned lows, highs;  // which bytes of two values, and of the zeros above the first, become the low half and the high one
  unsigned bytes;        // that a pair has
  unsigned below, own;

  // The tables go through shared memory, 16 bytes at `room`: what the compiler knows to be the same for all lanes it would
  // move to a register for each use.
  __device__ __forceinline__ Decoder(unsigned room, int lane) {
    below = (1u << lane % 4 * 8) - 1, own = 0x4440 + lane % 4;
    sts128(room, uint4{0x10321032, 0x54103232, 0x04020200, 0});
    __syncwarp();
    uint4 tables = lds128(room);
    lows = tables.x, highs = tables.y, bytes = tables.z;
    __syncwarp();
  }

  // The registers of a strip, whose values of these four lanes begin at `start`.
  __device__ __forceinline__ void decode(unsigned (&a)[4], unsigned word, unsigned start) const {
    const unsigned at = start + 2 * __popc(word & below);
    unsigned pairs = permute(word, 0, own);  // the two bits of each pair, four bits apart: entries of the tables
    pairs = or_and(pairs, pairs << 4, 0x0f0f);
    pairs = or_and(pairs, pairs << 2, 0x3333);
    const unsigned low = permute(lows, 0, pairs), high = permute(highs, 0, pairs), each = permute(bytes, 0, pairs);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned from = j == 0 ? at : dot4(each, 0x010101u >> (8 * (3 - j)), at);
      a[j] = permute(lds16<0>(from), lds16<2>(from), permute(low, high, 0x40 + 0x11 * j));
    }
  }
};

// The words of the strips of a step, and where their values begin.
struct Step {
  uint4 word;
  uint2 start;

  __device__ __forceinline__ Step(unsigned bits, int step, int lane) {
    const int first = step * 32 + lane / 4 * 4;
    word = lds128(bits + first * 4);
    start = lds64(bits + WORDS + first * 2);
  }

  __device__ __forceinline__ unsigned of(int strip) const { return strip == 0 ? word.x : strip == 1 ? word.y : strip == 2 ? word.z : word.w; }
  __device__ __forceinline__ unsigned begin(int strip, unsigned values) const {
    return dot2(strip < 2 ? start.x : start.y, strip & 1 ? 0x0200 : 0x0002, values);
  }
};
