// What ptx.cuh and wgmma.cuh have, on a CPU: see emulate.h.
#pragma once
using namespace emulated;

inline float half_to_float(unsigned short e) { _Float16 h; std::memcpy(&h, &e, 2); return float(h); }
inline unsigned short float_to_half(float f) { _Float16 h = _Float16(f); unsigned short e; std::memcpy(&e, &h, 2); return e; }
inline float wide(unsigned short e) {
#if ELEMENT == 1
  return __int_as_float(int(unsigned(e) << 16));
#else
  return half_to_float(e);
#endif
}
inline unsigned short slim(float f) {
#if ELEMENT == 1
  const unsigned bits = __float_as_int(f);
  return f != f ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  return float_to_half(f);
#endif
}
inline unsigned pack2(float low, float high) { return slim(low) | unsigned(slim(high)) << 16; }
inline unsigned short part(unsigned word, int high) { return (unsigned short)(word >> (16 * high)); }

// -- barriers

inline Barrier& barrier(unsigned bar) {
  auto found = self->block->barriers.find(bar);
  if (found == self->block->barriers.end()) fail("no barrier was made at " + std::to_string(bar));
  return found->second;
}
inline void complete(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.count;
  progress++;
}
inline void arrive(Barrier& b) {
  if (b.pending == 0) fail("more arrivals at a barrier than it waits for");
  b.pending--;
  complete(b);
}
inline void init_bar(unsigned bar, int count) { at(bar, 8, 8), self->block->barriers[bar] = {unsigned(count), unsigned(count)}; }
inline void arrive(unsigned bar) { arrive(barrier(bar)); }
inline void arrive_when_copied(unsigned bar) {
  Barrier* b = &barrier(bar);
  do_later(self->copied = std::max(self->copied, now + 1), [b] { arrive(*b); });
}
inline void expect_tx(unsigned bar, int bytes) { barrier(bar).bytes += bytes, arrive(bar); }
inline void wait(unsigned bar, int phase) {
  while (barrier(bar).phase == unsigned(phase)) yield();
}
inline void after_the_kernel_before() {}
template <int SIZE> void sync_cluster() {
  if (SIZE > 1) meet(everybody[0], SIZE * blockDim.x, blockIdx.x % SIZE * blockDim.x + threadIdx.x, Nothing{});
}
template <int THREADS> void sync_some(int number) {
  // whoever takes part: ranks by arrival, since nothing is brought
  Meeting& m = self->block->meetings[number];
  meet(m, THREADS, m.arrived, Nothing{});
}
inline void fence_bars() {}
template <int COUNT> void fewer_registers() {}
template <int COUNT> void more_registers() {}
inline void settle(const char*&) {}
inline void settle(const char*&, unsigned&) {}
inline void hold(uint4) {}
inline void hold(uint4, unsigned) {}
inline void fence_async() {}

// -- copies

template <bool WHOLE> void copy16(unsigned to, const void* from, int bytes) {
  at(to, 16, 16);
  if ((uintptr_t)from % 16) fail("cp.async from an address that is no multiple of 16");
  if (WHOLE) bytes = 16;
  self->copied = std::max(self->copied, soon());
  do_later(self->copied, [=] {
    std::memcpy(memory + (to - BASE), from, bytes);
    std::memset(memory + (to - BASE) + bytes, 0, 16 - bytes);
  });
}
inline void bulk_copy(unsigned to, const void* from, int bytes, unsigned bar) {
  at(to, bytes, 16);
  if ((uintptr_t)from % 16 || bytes % 16) fail("a bulk copy of no multiple of 16");
  Barrier* b = &barrier(bar);
  do_later(soon(), [=] {
    std::memcpy(memory + (to - BASE), from, bytes);
    b->bytes -= bytes;
    complete(*b);
  });
}
inline void wait_for_copies() {
  while (self->copied >= now) yield();
}

template <class T> T loaded(unsigned from) { T v; std::memcpy(&v, at(from, sizeof(T), sizeof(T)), sizeof(T)); return v; }
template <class T> void stored(unsigned to, T v) { std::memcpy(at(to, sizeof(T), sizeof(T)), &v, sizeof(T)); }
inline uint4 lds128(unsigned from) { return loaded<uint4>(from); }
inline unsigned lds32(unsigned from) { return loaded<unsigned>(from); }
inline int lds8(unsigned from) { return loaded<unsigned char>(from); }
inline void sts128(unsigned to, uint4 v) { stored(to, v); }
inline void sts64(unsigned to, unsigned low, unsigned high) { stored(to, (uint64_t)high << 32 | low); }

// -- 8 x 8 matrices: row r lies in the four threads of quad r, two elements each

inline unsigned turn(unsigned word) {
  auto all = meet_warp(word);
  unsigned g = lane() >> 2, t = lane() & 3, r = 0;
  for (int e = 0; e < 2; e++) r |= unsigned(part(brought<unsigned>(all, (2 * t + e) * 4 + g / 2), g & 1)) << (16 * e);
  return r;
}
inline void ldmatrix(unsigned (&r)[4], unsigned from) {
  auto all = meet_warp(from);
  for (int i = 0; i < 4; i++) r[i] = loaded<unsigned>(brought<unsigned>(all, i * 8 + (lane() >> 2)) + (lane() & 3) * 4);
}
template <bool TURN> void stmatrix(unsigned to, const unsigned (&w)[4]) {
  at(to, 16, 16);
  auto all = meet_warp(to);
  unsigned g = lane() >> 2, t = lane() & 3;
  for (int i = 0; i < 4; i++)
    if (TURN)
      for (int e = 0; e < 2; e++) stored(brought<unsigned>(all, i * 8 + 2 * t + e) + g * 2, part(w[i], e));
    else
      stored(brought<unsigned>(all, i * 8 + g) + t * 4, w[i]);
}

struct Place {  // what tests put where a tensor map is
  unsigned short* matrix;
  long long width, height, line, lines;  // the last: of a box
};
inline void tensor_load(unsigned to, const void* map, int x, int y, unsigned bar) {
  Place place;
  std::memcpy(&place, map, sizeof place);
  int lines = place.lines;
  at(to, lines * 128, 1024);
  Barrier* b = &barrier(bar);
  do_later(soon(), [=] {
    for (int r = 0; r < lines; r++)
      for (int c = 0; c < 64; c++) {
        unsigned short e = 0;
        if (y + r < place.height && x + c < place.width) std::memcpy(&e, (char*)place.matrix + (y + r) * place.line + (x + c) * 2, 2);
        std::memcpy(memory + (to - BASE) + r * 128 + (((c / 8) ^ (r & 7)) << 4) + c % 8 * 2, &e, 2);
      }
    b->bytes -= lines * 128;
    complete(*b);
  });
}
inline void tensor_store(const void* map, int x, int y, unsigned from) {
  Place place;
  std::memcpy(&place, map, sizeof place);
  at(from, place.lines * 128, 1024);
  Fiber* fiber = self;
  size_t number = fiber->stored.size();
  fiber->stored.push_back(false);
  do_later(now + 1 + chance() % 64, [=] {  // late: who writes there before it was read is found out
    for (int r = 0; r < place.lines; r++)
      for (int c = 0; c < 64; c++)
        if (y + r < place.height && x + c < place.width) {
          unsigned off = r * 128 + (((c / 8) ^ (r & 7)) << 4) + c % 8 * 2;
          std::memcpy((char*)place.matrix + (y + r) * place.line + (x + c) * 2, memory + (from - BASE) + off, 2);
        }
    fiber->stored[number] = true;
  });
}
template <int LEFT> void wait_until_read() {
  auto& all = self->stored;
  for (size_t i = 0; i + LEFT < all.size(); i++)
    while (!all[i]) yield();
}
inline float4 load_at(unsigned from, int rank) {
  Block* other = cluster[rank].get();
  at(from, 16, 16);
  float4 f;
  std::memcpy(&f, other == resident ? memory + (from - BASE) : other->kept.data() + (from - BASE), 16);
  return f;
}

// -- sparse products. A row keeps two of each four columns: a thread has those of groups t and t + 4, in rows g and g + 8.

struct Fragment16 {
  uint4 a;
  unsigned meta;
};
struct Kept {  // of a row: 16 values, and in which of 32 columns each is
  float value[16];
  int column[16];
};
inline Kept kept(const unsigned char (*all)[64], unsigned quad, int high, int select) {
  Kept row;
  for (int group = 0; group < 8; group++) {
    auto mine = brought<Fragment16>(all, quad * 4 + (group & 3));
    const unsigned words[4] = {mine.a.x, mine.a.y, mine.a.z, mine.a.w}, word = words[group / 4 * 2 + high];
    unsigned meta = brought<Fragment16>(all, quad * 4 + select * 2 + group / 4).meta >> (16 * high + 4 * (group & 3));
    if ((meta & 3) >= (meta >> 2 & 3)) fail("metadata that names a column twice, or out of order");
    for (int e = 0; e < 2; e++) row.value[2 * group + e] = wide(part(word, e)), row.column[2 * group + e] = 4 * group + (meta >> (2 * e) & 3);
  }
  return row;
}

template <int SELECT> void mma_sp(float (&d)[4], uint4 a, const unsigned (&b)[4], unsigned meta) {
  auto left = meet_warp(Fragment16{a, meta});
  const Kept rows[2] = {kept(left, lane() >> 2, 0, SELECT), kept(left, lane() >> 2, 1, SELECT)};
  struct { unsigned b[4]; } mine = {b[0], b[1], b[2], b[3]};
  auto right = meet_warp(mine);
  for (int q = 0; q < 4; q++) {
    unsigned token = 2 * (lane() & 3) + (q & 1);
    const Kept& row = rows[q >> 1];
    for (int i = 0; i < 16; i++) {
      int k = row.column[i];
      auto there = brought<decltype(mine)>(right, token * 4 + k % 8 / 2);
      d[q] += row.value[i] * wide(part(there.b[k / 8], k & 1));
    }
  }
}

// Columns of B in shared memory, by a descriptor with 128-byte swizzle; TURN: tokens lie side by side, else columns do.
template <int TURN> float of_b(unsigned long long desc, int k, int token) {
  unsigned start = (desc & 0x3fff) << 4, leading = (desc >> 16 & 0x3fff) << 4, stride = (desc >> 32 & 0x3fff) << 4;
  unsigned place = TURN ? start + token / 64 * leading + k / 8 * stride + k % 8 * 128 + token % 64 * 2
                        : start + token / 8 * stride + token % 8 * 128 + k * 2;
  place ^= (place >> 7 & 7) << 4;
  unsigned short e;
  std::memcpy(&e, memory + (place - BASE), 2);
  return wide(e);
}

template <int SELECT, int TURN, int SUMS>
void wgmma_sp(float (&d)[SUMS], uint4 a, unsigned long long b, unsigned meta, int keep) {
  const Fragment16 mine{a, meta};
  auto all = meet(self->block->meetings[OF_GROUPS + threadIdx.x / 128], 128, threadIdx.x & 127, mine) + (threadIdx.x & 96);
  const Kept rows[2] = {kept(all, lane() >> 2, 0, SELECT), kept(all, lane() >> 2, 1, SELECT)};
  float* sums = d;
  unsigned t = lane() & 3;
  self->products.push_back({self->committed, [=] {
    for (int j = 0; j < SUMS / 4; j++)
      for (int q = 0; q < 4; q++) {
        float sum = keep ? sums[4 * j + q] : 0;
        const Kept& row = rows[q >> 1];
        for (int i = 0; i < 16; i++) sum += row.value[i] * of_b<TURN>(b, row.column[i], 8 * j + 2 * t + (q & 1));
        sums[4 * j + q] = sum;
      }
  }});
}
inline void begin_products() {}
inline void commit_products() { self->committed++; }
template <int LEFT> void wait_for_products() {
  auto& all = self->products;
  size_t ready = 0;
  while (ready < all.size() && all[ready].first + LEFT < self->committed) all[ready++].second();
  all.erase(all.begin(), all.begin() + ready);
}
