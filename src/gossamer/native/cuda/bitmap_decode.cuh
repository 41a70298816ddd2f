// bitmap.cu: from codes and values to the registers of mma.sp.m16n8k32.
//
// A piece is 16 rows x 128 columns: two pairs of steps of 32 columns. A lane has eight groups of four neighbouring columns of
// a pair. Of a group, the first plane has a word of two values, or a single one of 16 bits, or nothing; the second one has a
// word or nothing; see formats/levels/pieces.py. A register is what was loaded: no permutes, no table.
//
// The second plane always has the places 2 and 3. The metadata of the first plane, four bits for each group, is computed from
// the codes by a few instructions for all eight groups. A transposition within a quad puts it into the lanes that the hardware
// reads it from. Only the products wait for it, not the loads.
//
// Each lane has two streams in a column of rows of 128 bytes, so that no two lanes read the same bank: single values from the
// first row on, and words behind them. After the first pair each lane goes on in another column: its words where those of
// another lane ended, its single values in the other halves of the first rows.
//
// A multiplication adds up the numbers of words of all groups of a pair, another one those of single values; dp4a takes one of
// eight sums of four bits, multiplies it by the bytes of a row and adds the address. So no load waits for another one. (When
// each load moved the address of the next one, 14336 x 4096 took 43 us with 4 warps on a processor and 22 with 8, at any
// density.) A lane that has no single value reads zero from a row before the piece, where others read theirs: no predicate. A
// word then replaces it.
//
// Instructions of a pair, 1024 elements: 16 tests, 24 loads, 15 for addresses, 8 zeros, 25 for the codes, and 4 products for 8
// tokens.
#pragma once
#include "tensor_cores.cuh"

constexpr int PIECE_BITS = 288, ROW = 128, ZEROS = ROW;  // bytes; ZEROS: in shared memory, behind the codes
constexpr unsigned SECOND = 0xeeeeeeee;     // metadata: places 2 and 3

// Of the eight groups of a lane, in four bits each.
struct Codes {
  unsigned first, second, words, singles, meta;  // bit 0: words of both planes; their number; a single value; metadata

  __device__ __forceinline__ explicit Codes(unsigned b0) {
    constexpr unsigned ONES = 0x11111111;
    const unsigned b1 = b0 >> 1, b2 = b0 >> 2, b3 = b0 >> 3;
    const unsigned pair = logic<0x10>(b2, b1, b0);                   // b2 & ~b1 & ~b0
    const unsigned low = (logic<0x8c>(b2, b1, b0) & ONES) * 15;      // b1 & ~(b2 & ~b0), in all four bits: places 0 and 1
    first = logic<0xa8>(b3, pair, ONES);                             // b3 | pair
    second = logic<0x2e>(b2, logic<0x4e>(b3, b1, b0), b1) & ONES;
    singles = logic<0x20>(logic<0xea>(b2, b1, b0), b3, ONES);        // (b2 & b1 | b0) & ~b3
    words = first + second;
    meta = logic<0xf2>(b0, pair * 8, 0x88888888);                    // b0 | ~pair, of the highest bits
    meta = logic<0xb8>(meta, low, 0x44444444);
  }
};

// What a lane must know to exchange codes with its quad. No predicates: the loads need all of them.
struct Exchange {
  unsigned own, by, bytes;

  __device__ __forceinline__ explicit Exchange(unsigned lane)
    : own(0x0f0f0f0f ^ (0 - (lane & 1))), by(28 ^ (lane & 1) * 24), bytes(0x6240 ^ (lane >> 1 & 1) * 0x5555) {
    settle(own), settle(by), settle(bytes);
  }

  // Code t of lane u becomes code u of lane t, in both halves of the words.
  __device__ __forceinline__ unsigned operator()(unsigned word) const {
    unsigned other = __shfl_xor_sync(0xffffffff, word, 1);
    word = (word & own) | (__funnelshift_r(other, other, by) & ~own);
    other = __shfl_xor_sync(0xffffffff, word, 2);
    return permute(word, other, bytes);
  }
};

// The row of group N below `at`, of numbers of four bits each.
template <int N>
__device__ __forceinline__ unsigned row(unsigned at, unsigned rows) {
  return dot4(rows, (N % 2 ? ROW / 16u : ROW) << N / 2 * 8, at);
}

// The registers of a pair, by step and plane; `at` moves to the end of the pair. `at`: a row before the words. `zero`: a row
// of zeros before the single values.
__device__ __forceinline__ void decode(unsigned (&a)[2][2][4], unsigned& at, unsigned zero, const Codes& c) {
  const unsigned words = c.words * 0x11111110, even = words & 0x0f0f0f0f, odd = words & 0xf0f0f0f0;
  const unsigned number = c.singles * 0x11111111, there = c.singles * 15;  // of a single value: 1 is the first one, 0 is none
  const unsigned even1 = logic<0x80>(number, there, 0x0f0f0f0f), odd1 = logic<0x80>(number, there, 0xf0f0f0f0);  // and
  const unsigned single[8] = {
    row<0>(zero, even1), row<1>(zero, odd1), row<2>(zero, even1), row<3>(zero, odd1),
    row<4>(zero, even1), row<5>(zero, odd1), row<6>(zero, even1), row<7>(zero, odd1)};
  unsigned begin[9] = {at,          row<1>(at, odd),  row<2>(at, even), row<3>(at, odd), row<4>(at, even),
                       row<5>(at, odd), row<6>(at, even), row<7>(at, odd)};
  at = begin[8] = begin[7] + (c.words >> 28) * ROW;
#pragma unroll
  for (int n = 0; n < 8; ++n) {  // high, step, upper
    const int step = n >> 1 & 1, r = (n & 1) * 2 + (n >> 2);
    a[step][0][r] = word_or<ROW>(lds16<0>(single[n]), begin[n], c.first, 1u << 4 * n);
    a[step][1][r] = word_if<0>(begin[n + 1], c.second, 1u << 4 * n);
  }
}
