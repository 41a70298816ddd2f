// bitmap.cu: from bits and packed values to the registers of mma.m16n8k16.
//
// A piece is 64 rows x 64 columns: four steps of 16 columns, each of four strips of 16 rows. A lane has eight elements of a
// strip and a step, an octet: a byte of the lane's word of the step. The values of a lane are a stream of words through its
// octets; word n of all lanes makes 128 bytes, so that no two lanes read the same bank. In an octet, pairs of which both
// elements are kept are whole words and come first, then the others, two a word; see formats/levels/pieces.py.
//
// A table of 512 entries says, for a byte and for whether the first word has one value already, where the word of each pair
// is, which of its bytes become the register, by how much the stream advances, and which half of the table is next. A lane
// reads one of 16 copies of an entry: loads of 8 bytes are done for 16 lanes at a time, so these don't collide either.
//
// An octet takes 26 instructions and 6 cycles of shared memory, and 1 or 2 more for x, whatever is kept.
//
// What was tried, 14336 x 4096 with 8 tokens on an H200 at 50 / 80 %, against 24.0 / 21.7 us:
// - values of a strip side by side, found by popc, one load for each: bank conflicts; 31.1 / 22.3 us;
// - entries of 16 bytes with the selectors of prmt and the next address: 20 instructions, 8 cycles; 24.1 / 22.3 us. Addresses
//   that went through 18 bits were wrong in clusters, where shared addresses have the block's rank in bits from 24 on.
#pragma once
#include "tensor_cores.cuh"

constexpr int PIECE_BITS = 512, ROW = 128;  // bytes
constexpr int TABLE = 512 * 128;

struct Entry {  // of the table
  unsigned offset = 0;  // of the words of the four pairs, a byte each
  unsigned code = 0;    // four bits for each pair: which of its word's bytes become the register; see Decoder
  int words = 0, half = 0;

  __device__ __forceinline__ Entry(unsigned byte, int begun) {
    int end = 2 * begun;  // the next whole word, in values
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if ((byte >> 2 * j & 3) == 3) put(j, end, 1), end += 2;
    bool fill = begun;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned pair = byte >> 2 * j & 3;
      if (pair != 1 && pair != 2) continue;
      const int at = fill ? 1 : end++;
      put(j, at, 2 * pair + (at & 1)), fill = false;
    }
    words = byte ? end / 2 : 0, half = byte ? end & 1 : begun;
  }

  __device__ __forceinline__ void put(int j, int value, unsigned bytes) {
    offset |= (unsigned)(value / 2) << 8 * j, code |= bytes << 4 * j;
  }
};

// Written by all threads of a block.
__device__ __forceinline__ void write_table(unsigned table, int thread, int threads) {
  for (int i = thread; i < 512; i += threads) {
    const Entry entry(i >> 1, i & 1);
    const unsigned rest = entry.code | (unsigned)entry.half << 23 | (unsigned)entry.words << 24;
    for (int c = 0; c < 16; ++c) sts64(table + i * 128 + (i + c & 15) * 8, entry.offset, rest);  // neighbours: other banks
  }
}

// The stream of a lane through a piece.
struct Decoder {
  unsigned table;  // the lane's copy of it
  unsigned entries;  // where the entry of byte 0 is: in the half for words that are begun, or in the other
  unsigned at;       // the word that the next octet begins with

  __device__ __forceinline__ Decoder(unsigned start, unsigned values, int lane) : table(start + lane % 16 * 8), entries(table), at(values + lane * 4) {}

  // The registers of an octet, byte `k` of `word`.
  __device__ __forceinline__ void decode(unsigned (&a)[4], unsigned word, int k) {
    const uint2 entry = lds64(entries + permute(word, 0, 0x4404 + 0x10 * k));
    // by code: nothing, a whole word, its first or second value as the low half, the same as the high half
    const unsigned low = permute(0x32101054, 0x5454, entry.y), high = permute(0x54543254, 0x3210, entry.y);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      a[j] = permute(lds32(dot4(entry.x, (unsigned)ROW << 8 * j, at)), 0, permute(low, high, 0x40 + 0x11 * j));
    at = dot4(entry.y, (unsigned)ROW << 24, at);
    entries = dot4(entry.y, 1u << 16, table);
  }
};
