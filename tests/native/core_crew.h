// Jobs shared by threads: every item once, whoever does it; several callers at the same time; a job that throws.
#include <atomic>
#include <stdexcept>
#include <thread>

#include "crew.h"

struct Counted {
  std::vector<std::atomic<int>> times;
  explicit Counted(int64_t items) : times(size_t(items)) {}
  static void run(int64_t begin, int64_t end, void* self) {
    for (int64_t i = begin; i < end; i++) static_cast<Counted*>(self)->times[size_t(i)]++;
  }
};

static void fails(int64_t, int64_t end, void*) {
  if (end == 8) throw std::runtime_error("the last part");
}

static void many_jobs(unsigned seed, std::atomic<int>* wrong) {
  for (int i = 0; i < 2000; i++) {
    seed = seed * 1103515245u + 12345u;
    const int64_t items = (seed >> 16) % 97, threads = 1 + (seed >> 8) % 4;
    Counted job(items);
    if (!share(items, threads, Counted::run, &job)) ++*wrong;
    for (const auto& times : job.times) *wrong += times != 1;
  }
}

static void all_jobs() {
  std::atomic<int> wrong{0};
  std::thread other(many_jobs, 1u, &wrong);
  many_jobs(2u, &wrong);
  other.join();
  if (share(8, 2, fails, nullptr)) ++wrong;
  many_jobs(3u, &wrong);  // and goes on
  failures += wrong, cases += 3;
}
