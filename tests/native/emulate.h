// Enough of CUDA to run a kernel on a CPU, a cluster of blocks at a time. Every thread of a block is a fiber, a stack of its
// own that runs until it has to wait; what a GPU does beside its threads (copies, arrivals) happens some turns after it was
// asked for, so that who forgets to wait reads the wrong bytes. Slow and exact: it shows a wrong index, a missing wait, a
// barrier that nobody comes to, and shared memory that is too small; not what only an unlucky order of threads would show.
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__  // only `extern __shared__` is known here: `memory` below

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

constexpr unsigned BASE = 1024, MOST = 232448;  // shared memory begins at an address that is not zero
alignas(1024) unsigned char memory[MOST];       // that of the block that runs

namespace emulated {

// Threads that meet, each with some bytes that all may read until they meet the next time but one.
struct Meeting {
  unsigned arrived = 0, turn = 0;
  std::vector<std::array<unsigned char, 64>> brought[2];
};

struct Barrier {  // mbarrier
  unsigned count, pending, phase = 0;
  long long bytes = 0;
};

struct Later {
  unsigned long long time, number;
  std::function<void()> act;
};

struct Block {
  Index index;
  unsigned rank;  // in its cluster
  std::vector<unsigned char> kept;  // shared memory, while another block runs
  std::map<unsigned, Barrier> barriers;
  std::map<unsigned, Meeting> meetings;
  std::vector<Later> later;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Index thread;
  Block* block;
  bool done = false;
  unsigned long long copied = 0;       // when the last of its copies is complete
  std::vector<unsigned long long> groups;  // of copies: when each is complete
  std::vector<bool> stored;            // its tensor stores: read from shared memory yet?
  std::vector<std::pair<unsigned, std::function<void()>>> products;  // by group
  unsigned committed = 0;
};

inline ucontext_t scheduler;
inline Fiber* self = nullptr;
inline Block* resident = nullptr;
inline std::vector<std::unique_ptr<Block>> cluster;
inline std::map<unsigned, Meeting> everybody;  // of the cluster
inline unsigned shared_bytes = 0;
inline unsigned long long now = 0, progress = 0, numbers = 0;
inline std::string failed;
inline std::minstd_rand chance;
inline std::function<void()> kernel;

inline void yield() { swapcontext(&self->context, &scheduler); }

[[noreturn]] inline void fail(const std::string& why) {
  if (failed.empty()) {
    char who[96];
    std::snprintf(who, sizeof who, " (block %u, thread %u)", self ? self->block->index.x : 0, self ? self->thread.x : 0);
    failed = why + who;
  }
  for (;;) yield();
}

// Where shared memory of the block begins. In a cluster, bits from 24 on are the rank of the block, as on a GPU.
inline unsigned base() { return BASE + (self->block->rank << 24); }

inline unsigned char* at(unsigned address, unsigned bytes, unsigned aligned) {
  if (address % aligned) fail("shared memory at " + std::to_string(address) + " is not aligned to " + std::to_string(aligned));
  if (address < base() || address + bytes > base() + shared_bytes) fail("no shared memory of this block at " + std::to_string(address) + " .. " + std::to_string(address + bytes));
  return memory + (address - base());
}

inline void do_later(unsigned long long time, std::function<void()> act) {
  self->block->later.push_back({time, numbers++, std::move(act)});
}
inline unsigned long long soon() { return now + 1 + chance() % 3; }

// Meet `size` threads; returns what all brought, in the order of their ranks.
template <class T>
const unsigned char (*meet(Meeting& m, unsigned size, unsigned rank, const T& mine))[64] {
  static_assert(sizeof(T) <= 64);
  const unsigned turn = m.turn;
  auto& all = m.brought[turn & 1];
  all.resize(size);
  std::memcpy(all[rank].data(), &mine, sizeof(T));
  progress++;
  if (++m.arrived == size)
    m.arrived = 0, m.turn++;
  else
    while (m.turn == turn) yield();
  return reinterpret_cast<const unsigned char(*)[64]>(all.data());
}

template <class T>
T brought(const unsigned char (*all)[64], unsigned rank) {
  T value;
  std::memcpy(&value, all[rank], sizeof(T));
  return value;
}

inline unsigned lane() { return threadIdx.x & 31; }
enum { OF_WARPS = 1000, OF_WARPGROUPS = 2000 };  // numbers of meetings, above those of bar.sync
template <class T>
auto meet_warp(const T& mine) {
  unsigned warp = threadIdx.x / 32, left = blockDim.x - warp * 32;
  return meet(self->block->meetings[OF_WARPS + warp], left < 32 ? left : 32, lane(), mine);
}

inline void settle_in(Block* block) {
  if (resident == block) return;
  if (resident) std::memcpy(resident->kept.data(), memory, shared_bytes);
  std::memcpy(memory, block->kept.data(), shared_bytes);
  resident = block;
}

inline void deliver(Block* block) {
  auto& waiting = block->later;
  std::vector<Later> due;
  for (size_t i = 0; i < waiting.size();)
    if (waiting[i].time <= now) {
      due.push_back(std::move(waiting[i]));
      waiting[i] = std::move(waiting.back());
      waiting.pop_back();
    } else
      ++i;
  std::sort(due.begin(), due.end(), [](auto& a, auto& b) { return std::tie(a.time, a.number) < std::tie(b.time, b.number); });
  for (auto& one : due) one.act(), progress++;
}

inline void start() {
  kernel();
  self->done = true;
  progress++;
  for (;;) yield();
}

// All threads of the blocks of `cluster`, until they are done.
inline void run_cluster(std::vector<std::unique_ptr<Fiber>>& fibers) {
  for (;;) {
    const unsigned long long before = progress;
    bool alive = false, waiting = false;
    ++now;
    for (auto& block : cluster) {
      settle_in(block.get());
      blockIdx = block->index;
      for (auto& fiber : fibers) {
        if (fiber->block != block.get() || fiber->done) continue;
        alive = true;
        self = fiber.get(), threadIdx = fiber->thread;
        swapcontext(&scheduler, &fiber->context);
        if (!failed.empty()) return;
      }
      deliver(block.get());
      waiting |= !block->later.empty();
    }
    if (!alive && !waiting) return;
    if (progress == before && !waiting) {
      failed = "all threads wait for each other";
      return;
    }
  }
}

template <class T>
T take(const char* buffer, int offset) {
  T value;
  std::memcpy(&value, buffer + offset, sizeof(T));
  return value;
}

template <class... A, size_t... I>
std::tuple<A...> unpack(const char* buffer, const int* offsets, std::index_sequence<I...>) {
  return {take<A>(buffer, offsets[I])...};
}

// Returns what went wrong, or nothing.
template <class... A>
const char* run(void (*function)(A...), const char* buffer, const int* offsets, const unsigned* grid, unsigned threads, unsigned shared, unsigned blocks) {
  auto arguments = unpack<A...>(buffer, offsets, std::index_sequence_for<A...>{});
  kernel = [&] { std::apply(function, arguments); };
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {threads, 1, 1};
  shared_bytes = shared, failed.clear();
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x += blocks) {
        std::vector<std::unique_ptr<Fiber>> fibers;
        cluster.clear(), everybody.clear();
        resident = nullptr;
        for (unsigned b = 0; b < blocks; b++) {
          cluster.push_back(std::make_unique<Block>());
          Block* block = cluster.back().get();
          block->index = {x + b, y, z}, block->rank = b;
          block->kept.assign(shared, 0xff);  // what was never written is no number
          for (unsigned t = 0; t < threads; t++) {
            fibers.push_back(std::make_unique<Fiber>());
            Fiber* fiber = fibers.back().get();
            fiber->thread = {t, 0, 0}, fiber->block = block;
            constexpr size_t STACK = 1 << 16;
            fiber->stack.reset(new char[STACK]);
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = fiber->stack.get(), fiber->context.uc_stack.ss_size = STACK;
            makecontext(&fiber->context, start, 0);
          }
        }
        run_cluster(fibers);
        if (!failed.empty()) return failed.c_str();
      }
  return nullptr;
}

}  // namespace emulated

struct Nothing {};
inline void __syncthreads() { emulated::meet(emulated::self->block->meetings[0], blockDim.x, threadIdx.x, Nothing{}); }
inline void __syncwarp(unsigned = ~0u) { emulated::meet_warp(Nothing{}); }
inline unsigned long long __cvta_generic_to_shared(const void* at) { return (const unsigned char*)at - memory + emulated::base(); }
inline float __int_as_float(int i) { float f; std::memcpy(&f, &i, 4); return f; }
inline double __longlong_as_double(long long i) { double f; std::memcpy(&f, &i, 8); return f; }
inline int __float_as_int(float f) { int i; std::memcpy(&i, &f, 4); return i; }
template <class T> T atomicAdd(T* p, T more) { const T before = *p; *p += more; return before; }
template <class T> T __ldg(const T* p) { return *p; }
inline int min(int a, int b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned pick) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= unsigned(bytes >> (8 * (pick >> (4 * i) & 7)) & 255) << (8 * i);
  return r;
}

template <class T> T __shfl_sync(unsigned, T value, int from) { return emulated::brought<T>(emulated::meet_warp(value), from & 31); }
template <class T> T __shfl_up_sync(unsigned, T value, int by) {
  return emulated::brought<T>(emulated::meet_warp(value), (int)emulated::lane() < by ? emulated::lane() : emulated::lane() - by);
}
inline unsigned __vmaxu2(unsigned a, unsigned b) { return std::max(a & 0xffff, b & 0xffff) | std::max(a >> 16, b >> 16) << 16; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return unsigned(((uint64_t)high << 32 | low) >> (by & 31)); }
inline int __popc(unsigned w) { return __builtin_popcount(w); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return emulated::brought<T>(emulated::meet_warp(value), (emulated::lane() ^ mask) & 31); }
