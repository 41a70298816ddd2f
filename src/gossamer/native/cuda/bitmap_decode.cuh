// bitmap.cu: from bits and packed values to the registers of mma.m16n8k16.
//
// A piece is 64 rows x 64 columns: four steps of 16 columns, each of four strips of 16 rows. A lane has RUN elements in a
// round: RUN = 8 all of a strip's (registers 0 to 3 of the fragment), RUN = 4 those of registers 0 and 1, then of 2 and 3.
// Its values lie side by side, after those of the lanes before it. A word has the bits of 32 / RUN lanes; words are at
// [step][word of a round, RUN][round of the step, 32 / RUN], so that a lane reads those of all rounds of a step at once.
// Behind the words, in the same order and 16 bits each, is the number of values before those of each word. Adding them up in
// the kernel saves 256 bytes of a piece, and costs a tenth of all instructions and a wait of 400 cycles.
#pragma once
#include "tensor_cores.cuh"

constexpr int LANES = 32 / RUN;  // of a word, and rounds of a step
constexpr int WORDS = 512, PIECE_BITS = WORDS + 256;  // bytes

// What a lane needs for all rounds. A pair of elements has none of the next two values, the first one low, the first one
// high, or both: a byte of each table says what that means.
struct Decoder {
  unsigned lows, highs;  // which bytes of two values and of a zero become the low half, and the high one
  unsigned bytes;        // that a pair has
  unsigned shift, below, own;

  // The tables go through shared memory, 16 bytes at `room`: what the compiler knows to be the same for all lanes it would
  // move to a register for each use.
  __device__ __forceinline__ Decoder(unsigned room, int lane) {
    shift = lane % LANES * RUN, below = (1u << shift) - 1, own = 0x4440 + lane % LANES;
    sts128(room, uint4{0x10441044, 0x32104444, 0x04020200, 0});
    __syncwarp();
    uint4 tables = lds128(room);
    lows = tables.x, highs = tables.y, bytes = tables.z;
    __syncwarp();
  }

  // Entries of the tables: the two bits of a pair, four bits apart.
  __device__ __forceinline__ unsigned pairs(unsigned word) const {
    if (RUN == 8) {
      unsigned mine = permute(word, 0, own);
      mine = or_and(mine, mine << 4, 0x0f0f);
      return or_and(mine, mine << 2, 0x3333);
    }
    const unsigned mine = word >> shift;
    return (mine & 12) * 4 + (mine & 3);
  }

  // The registers of a round, whose values of these lanes begin at `start`. Loads cost most here: one of 32 bits for each
  // pair, at a multiple of four bytes. A pair that begins in the upper half and has two values finds the second one in the
  // word of the next pair. Sums of products of bytes are what adds up without waiting for the units that permute.
  __device__ __forceinline__ void decode(unsigned* a, unsigned word, unsigned start) const {
    const unsigned at = start + 2 * __popc(word & below), which = pairs(word);
    const unsigned low = permute(lows, 0, which), high = permute(highs, 0, which), each = permute(bytes, 0, which);
    const unsigned from = each * 0x01010100u + (at & 2) * 0x01010101u;  // bytes from `base` to each pair
    const unsigned base = at & ~3u, words = from & 0xfcfcfcfcu;
    unsigned v[RUN / 2 + 1];
#pragma unroll
    for (int j = 0; j < RUN / 2; ++j) v[j] = lds32(j == 0 ? base : dot4(words, 1u << (8 * j), base));
    v[RUN / 2] = lds32(dot4(each, 0x01010101u, at) & ~3u);
#pragma unroll
    for (int j = 0; j < RUN / 2; ++j) {
      const unsigned two = __funnelshift_r(v[j], v[j + 1], dot4(from, 8u << (8 * j), 0));  // from the lower half, or the upper
      a[j] = permute(two, 0, permute(low, high, 0x40 + 0x11 * j));
    }
  }
};

// The words of the rounds of a step, and where their values begin.
struct Step {
  unsigned word[LANES], start[LANES / 2];

  __device__ __forceinline__ Step(unsigned bits, int step, int lane) {
    const int first = step * 32 + lane / LANES * LANES;
#pragma unroll
    for (int i = 0; i < LANES; i += 4) {
      uint4 w = lds128(bits + (first + i) * 4);
      uint2 s = lds64(bits + WORDS + (first + i) * 2);
      word[i] = w.x, word[i + 1] = w.y, word[i + 2] = w.z, word[i + 3] = w.w;
      start[i / 2] = s.x, start[i / 2 + 1] = s.y;
    }
  }

  __device__ __forceinline__ unsigned begin(int round, unsigned values) const {
    return dot2(start[round / 2], round & 1 ? 0x0200 : 0x0002, values);
  }
};
