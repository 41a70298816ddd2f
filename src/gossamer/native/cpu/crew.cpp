// See crew.h. Built for the oldest processor.
//
// One job at a time. `ticket` says which one it is and which of its parts is the next: whoever wants a part adds 1, and owns
// it if nobody else was faster. A helper that is late finds all parts taken, or another job's ticket, and touches nothing.
// A helper that has nothing to do looks for work for SPIN turns, about 20 us, and then sleeps: a loop over the layers of a
// model finds it awake. Who waits leaves the core to any other thread that wants it, turn by turn: the scheduler may have
// put caller and helper on the same core, if the others are busy.
#include "crew.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gossamer {
namespace {

constexpr int64_t MOST = 64;            // threads
constexpr int64_t PARTS = 2;            // for each thread: who comes late has less to do
constexpr uint64_t PART = 0xFFFF;       // the bits of a ticket that number the part; the others number the job
constexpr int SPIN = 100;               // turns, of about 0.2 us

struct Job {
  std::atomic<int64_t> items, parts, helpers;
  std::atomic<void (*)(int64_t, int64_t, void*)> run;
  std::atomic<void*> data;
};

Job job;
std::atomic<uint64_t> ticket{PART};     // no part to take
std::atomic<int64_t> left{0};           // parts that are not done
std::atomic<bool> failed{false}, taken{false};
std::atomic<int64_t> asleep{0};
int64_t helpers = 0;                    // changed by who has `taken`
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

void wait_a_turn() {
#if defined(__x86_64__)
  for (int i = 0; i < 8; i++) _mm_pause();
#endif
  sched_yield();
}

// Do parts of the job with this ticket until there are none.
void work(uint64_t seen) {
  while (true) {
    const int64_t part = int64_t(seen & PART), parts = job.parts, items = job.items;
    const auto run = job.run.load();
    void* const data = job.data;
    if (part >= parts) return;
    if (!ticket.compare_exchange_weak(seen, seen + 1)) continue;
    try {
      run(part * items / parts, (part + 1) * items / parts, data);
    } catch (...) {
      failed = true;
    }
    --left;
    seen = ticket;
  }
}

bool wanted(int64_t helper) { return int64_t(ticket & PART) < job.parts && helper < job.helpers; }

void help(int64_t me) {
  while (true) {
    for (int i = 0; i < SPIN && !wanted(me); i++) wait_a_turn();
    if (!wanted(me)) {
      pthread_mutex_lock(&lock);
      ++asleep;
      while (!wanted(me)) pthread_cond_wait(&wake, &lock);
      --asleep;
      pthread_mutex_unlock(&lock);
    }
    work(ticket);
  }
}

// In a child of fork there are no helpers, and nobody holds anything.
void forget() {
  helpers = 0, asleep = 0, left = 0, taken = false, ticket = ticket | PART;
  pthread_mutex_init(&lock, nullptr), pthread_cond_init(&wake, nullptr);
}

void hire(int64_t wanted) {
  static const int once = pthread_atfork(nullptr, nullptr, forget);
  (void)once;
  for (; helpers < wanted; helpers++) {
    try {
      std::thread(help, helpers).detach();  // by libstdc++: pthread_create would need glibc 2.34 where that builds the wheel
    } catch (...) {
      return;  // then there are fewer
    }
  }
}

}  // namespace

bool share(int64_t items, int64_t threads, void (*run)(int64_t, int64_t, void*), void* data) {
  const int64_t most = threads < MOST ? threads : MOST, parts = items < most * PARTS ? items : most * PARTS;
  if (most < 2 || parts < 2 || taken.exchange(true)) return run(0, items, data), true;
  hire(most - 1);
  failed = false, left = parts;
  job.items = items, job.run = run, job.data = data, job.parts = parts, job.helpers = most - 1;
  const uint64_t mine = (ticket | PART) + 1;  // part 0 of another job
  ticket = mine;
  if (asleep) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
  }
  work(mine);
  while (left) wait_a_turn();
  ticket = mine | PART;
  const bool good = !failed;
  taken = false;
  return good;
}

}  // namespace gossamer
