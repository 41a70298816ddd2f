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
// e4m3: a sign, four bits of exponent, three of fraction; no infinity, NaN is all ones.
inline float from_e4m3(unsigned e) {
  const int exponent = e >> 3 & 15, fraction = e & 7;
  if ((e & 127) == 127) return NAN;
  const float f = exponent ? std::ldexp(8.f + fraction, exponent - 10) : std::ldexp(float(fraction), -9);
  return e & 128 ? -f : f;
}
inline unsigned one_e4m3(float f) {  // to the nearest, ties to even
  const unsigned sign = std::signbit(f) ? 128 : 0;
  if (f != f) return 127;
  f = std::fabs(f);
  if (f >= 448) return sign | 126;
  unsigned best = 0;
  for (unsigned e = 0; e < 127; e++) {
    const float now = std::fabs(from_e4m3(e) - f), before = std::fabs(from_e4m3(best) - f);
    if (now < before || (now == before && e % 2 == 0)) best = e;
  }
  return sign | best;
}
inline unsigned to_e4m3(float low, float high) { return one_e4m3(low) | one_e4m3(high) << 8; }
template <int HIGH_HALF> unsigned halves_of_e4m3(unsigned four) {
  const unsigned two = four >> 16 * HIGH_HALF;
  return float_to_half(from_e4m3(two & 255)) | unsigned(float_to_half(from_e4m3(two >> 8 & 255))) << 16;
}
inline unsigned to_int8(float f) { return f != f ? 0 : unsigned(int(std::nearbyint(std::fmin(std::fmax(f, -128.f), 127.f)))) & 255; }
inline unsigned permute(unsigned low, unsigned high, unsigned pick) {
  if (pick & 0x8888) fail("a byte with its sign");
  return __byte_perm(low, high, pick & 0xffff);
}
inline unsigned or_and(unsigned a, unsigned b, unsigned c) { return (a | b) & c; }
template <int TABLE> unsigned logic(unsigned a, unsigned b, unsigned c) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= unsigned(TABLE >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
  return r;
}
inline unsigned dot4(unsigned a, unsigned b, unsigned sum) {
  for (int i = 0; i < 32; i += 8) sum += (a >> i & 255) * (b >> i & 255);
  return sum;
}

inline unsigned dot2(unsigned a, unsigned b, unsigned sum) { return sum + (a & 0xffff) * (b & 255) + (a >> 16) * (b >> 8 & 255); }

inline unsigned pack2(float low, float high) { return slim(low) | unsigned(slim(high)) << 16; }
inline unsigned short part(unsigned word, int high);
inline unsigned multiply2(unsigned a, unsigned b) { return pack2(wide(part(a, 0)) * wide(part(b, 0)), wide(part(a, 1)) * wide(part(b, 1))); }
inline unsigned add2(unsigned a, unsigned b) { return pack2(wide(part(a, 0)) + wide(part(b, 0)), wide(part(a, 1)) + wide(part(b, 1))); }
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
inline void wait_for_the_kernel_before() {}
inline void let_the_next_kernel_start() {}
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
inline void settle(unsigned&) {}
inline bool elected() { return lane() == 0; }
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
  unsigned char* const place = memory + (to - base());
  do_later(self->copied, [=] {
    std::memcpy(place, from, bytes);
    std::memset(place + bytes, 0, 16 - bytes);
  });
}
inline void bulk_copy(unsigned to, const void* from, int bytes, unsigned bar) {
  at(to, bytes, 16);
  if ((uintptr_t)from % 16 || bytes % 16 || bytes <= 0) fail("a bulk copy of no multiple of 16");
  Barrier* b = &barrier(bar);
  unsigned char* const place = memory + (to - base());
  do_later(soon(), [=] {
    std::memcpy(place, from, bytes);
    b->bytes -= bytes;
    complete(*b);
  });
}
inline void mark_copies() { self->groups.push_back(self->copied); }
template <int LEFT> void wait_for_groups() {
  auto& all = self->groups;
  while (all.size() > LEFT && all[all.size() - 1 - LEFT] >= now) yield();
}
inline void wait_for_copies() {
  while (self->copied >= now) yield();
}

template <class T> T loaded(unsigned from) { T v; std::memcpy(&v, at(from, sizeof(T), sizeof(T)), sizeof(T)); return v; }
template <class T> void stored(unsigned to, T v) { std::memcpy(at(to, sizeof(T), sizeof(T)), &v, sizeof(T)); }
inline uint4 lds128(unsigned from) { return loaded<uint4>(from); }
inline uint2 lds64(unsigned from) { return loaded<uint2>(from); }
template <int OFFSET> unsigned lds16(unsigned from) { return loaded<unsigned short>(from + OFFSET); }
inline void sts16(unsigned to, unsigned low) { stored(to, (unsigned short)low); }
inline unsigned lds32(unsigned from) { return loaded<unsigned>(from); }
template <int OFFSET> unsigned word_if(unsigned from, unsigned word, unsigned bits) { return word & bits ? loaded<unsigned>(from + OFFSET) : 0; }
template <int OFFSET> unsigned word_or(unsigned other, unsigned from, unsigned word, unsigned bits) { return word & bits ? loaded<unsigned>(from + OFFSET) : other; }
inline unsigned half_if(unsigned from, unsigned word, unsigned bits) { return word & bits ? loaded<unsigned short>(from) : 0; }
inline int lds8(unsigned from) { return loaded<unsigned char>(from); }
inline void sts32(unsigned to, unsigned v) { stored(to, v); }
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
inline void ldmatrix_turned(unsigned (&r)[4], unsigned from) {
  auto all = meet_warp(from);
  unsigned g = lane() >> 2, t = lane() & 3;
  for (int i = 0; i < 4; i++) {
    r[i] = 0;
    for (int e = 0; e < 2; e++)
      r[i] |= unsigned(loaded<unsigned short>(brought<unsigned>(all, i * 8 + 2 * t + e) + g * 2)) << (16 * e);
  }
}
inline float exp2_of(float f) { return std::exp2(f); }
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
  unsigned char* const box = memory + (to - base());
  do_later(soon(), [=] {
    for (int r = 0; r < lines; r++)
      for (int c = 0; c < 64; c++) {
        unsigned short e = 0;
        if (y + r < place.height && x + c < place.width) std::memcpy(&e, (char*)place.matrix + (y + r) * place.line + (x + c) * 2, 2);
        std::memcpy(box + r * 128 + (((c / 8) ^ (r & 7)) << 4) + c % 8 * 2, &e, 2);
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
  const unsigned char* const box = memory + (from - base());
  size_t number = fiber->stored.size();
  fiber->stored.push_back(false);
  do_later(now + 1 + chance() % 64, [=] {  // late: who writes there before it was read is found out
    for (int r = 0; r < place.lines; r++)
      for (int c = 0; c < 64; c++)
        if (y + r < place.height && x + c < place.width) {
          unsigned off = r * 128 + (((c / 8) ^ (r & 7)) << 4) + c % 8 * 2;
          std::memcpy((char*)place.matrix + (y + r) * place.line + (x + c) * 2, box + off, 2);
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
  std::memcpy(&f, (other == resident ? memory : other->kept.data()) + (from - base()), 16);
  return f;
}

// -- products

inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Fragment { unsigned a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  auto all = meet_warp(mine);
  for (int q = 0; q < 4; q++)
    for (int k = 0; k < 16; k++) {
      auto left = brought<Fragment>(all, (lane() >> 2) * 4 + k % 8 / 2), right = brought<Fragment>(all, (2 * (lane() & 3) + (q & 1)) * 4 + k % 8 / 2);
      d[q] += wide(part(left.a[k / 8 * 2 + q / 2], k & 1)) * wide(part(right.b[k / 8], k & 1));
    }
}

// Sparse ones. A row keeps two of each four columns: a thread has those of groups t and t + 4, in rows g and g + 8; of 8-bit
// operands those of groups 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
struct Fragment16 {
  uint4 a;
  unsigned meta;
};
#if WEIGHT && defined(STAGES)  // both operands have 8 bits
constexpr int BYTES = 1;
inline float operand(unsigned bits) { return WEIGHT == 1 ? from_e4m3(bits & 255) : float((signed char)bits); }
#else
constexpr int BYTES = 2;
#ifdef HALF_PRODUCTS
inline float operand(unsigned bits) { return half_to_float((unsigned short)bits); }
#else
inline float operand(unsigned bits) { return wide((unsigned short)bits); }
#endif
#endif
constexpr int GROUPS = 16 / BYTES;  // of an instruction
struct Kept {  // of a row: values, and in which column each is
  float value[2 * GROUPS];
  int column[2 * GROUPS];
};
inline Kept kept(const unsigned char (*all)[64], unsigned quad, int high, int select) {
  Kept row;
  for (int group = 0; group < GROUPS; group++) {
    const int upper = group / (GROUPS / 2), inside = group % (GROUPS / 2), owner = BYTES == 1 ? inside / 2 : inside;
    auto mine = brought<Fragment16>(all, quad * 4 + owner);
    const unsigned words[4] = {mine.a.x, mine.a.y, mine.a.z, mine.a.w}, word = words[upper * 2 + high];
    unsigned meta;
    if (BYTES == 1)
      meta = brought<Fragment16>(all, quad * 4 + high + 2 * upper).meta >> (4 * inside);
    else
      meta = brought<Fragment16>(all, quad * 4 + select * 2 + upper).meta >> (16 * high + 4 * inside);
    if ((meta & 3) >= (meta >> 2 & 3)) fail("metadata that names a column twice, or out of order");
    for (int e = 0; e < 2; e++) {
      row.value[2 * group + e] = operand(BYTES == 1 ? word >> (8 * (group % 2 * 2 + e)) : part(word, e));
      row.column[2 * group + e] = 4 * group + (meta >> (2 * e) & 3);
    }
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
      d[q] += row.value[i] * operand(part(there.b[k / 8], k & 1));
    }
  }
}

// Columns of B in shared memory, by a descriptor with 128-byte swizzle; TURN: tokens lie side by side, else columns do.
template <int TURN> float of_b(unsigned long long desc, int k, int token) {
  unsigned start = (desc & 0x3fff) << 4, leading = (desc >> 16 & 0x3fff) << 4, stride = (desc >> 32 & 0x3fff) << 4;
  unsigned place = TURN ? start + token / 64 * leading + k / 8 * stride + k % 8 * 128 + token % 64 * 2
                        : start + token / 8 * stride + token % 8 * 128 + k * BYTES;
  place ^= (place >> 7 & 7) << 4;
  unsigned short e = 0;
  std::memcpy(&e, memory + (place - BASE), BYTES);  // a descriptor has 18 bits of the address: none of the rank
  return operand(e);
}

template <int SELECT, int TURN, class S, int SUMS>
void wgmma_sp(S (&d)[SUMS], uint4 a, unsigned long long b, unsigned meta, int keep) {
  static_assert(BYTES == 2 || (SELECT == 0 && TURN == 0));
  const Fragment16 mine{a, meta};
  auto all = meet(self->block->meetings[OF_WARPGROUPS + threadIdx.x / 128], 128, threadIdx.x & 127, mine) + (threadIdx.x & 96);
  const Kept rows[2] = {kept(all, lane() >> 2, 0, SELECT), kept(all, lane() >> 2, 1, SELECT)};
  S* sums = d;
  unsigned t = lane() & 3;
  self->products.push_back({self->committed, [=] {
    for (int j = 0; j < SUMS / 4; j++)
      for (int q = 0; q < 4; q++) {
        S sum = keep ? sums[4 * j + q] : S(0);
        const Kept& row = rows[q >> 1];
        for (int i = 0; i < 2 * GROUPS; i++) sum += S(row.value[i] * of_b<TURN>(b, row.column[i], 8 * j + 2 * t + (q & 1)));
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
