// See team.h.
#include "team.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace gossamer {

namespace {

constexpr int64_t MOST = 64;                                 // threads besides the caller
constexpr auto SPIN = std::chrono::microseconds(20);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Job {
  void (*f)(int64_t, int64_t, void*);
  void* context;
  int64_t items, part;
  std::atomic<int64_t> next{0}, seats;

  void work() {
    for (int64_t at; (at = next.fetch_add(part)) < items;) f(at, at + part < items ? at + part : items, context);
  }
};

class Team {
 public:
  void run(Job& job) {
    const std::unique_lock<std::mutex> alone(owner_, std::try_to_lock);
    if (!alone) return job.work();
    while (size_ < job.seats.load() && size_ < MOST && add()) {
    }
    job_ = &job;
    turn_++;
    if (sleeping_) {
      { const std::lock_guard<std::mutex> hold(mutex_); }  // whoever counts as asleep is
      wake_.notify_all();
    }
    struct Close {  // who comes now finds nothing, and who is inside is waited for, also if the work throws
      Team& team;
      ~Close() {
        team.job_ = nullptr;
        for (int tries = 0; team.inside_; tries++) tries < 1000 ? pause() : std::this_thread::yield();
      }
    } close{*this};
    job.work();
  }

 private:
  bool add() {
    try {
      std::thread([this] { loop(); }).detach();
    } catch (...) {  // the system has no thread for us
      return false;
    }
    return ++size_;
  }

  void loop() {
    for (uint64_t seen = 0;; seen = wait(seen)) {
      inside_++;
      if (Job* job = job_)
        if (job->seats.fetch_sub(1) > 0) job->work();
      inside_--;
    }
  }

  uint64_t wait(uint64_t seen) {
    const auto end = std::chrono::steady_clock::now() + SPIN;
    do {
      for (int i = 0; i < 32; i++, pause())
        if (turn_ != seen) return turn_;
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> hold(mutex_);
    sleeping_++;
    wake_.wait(hold, [&] { return turn_ != seen; });
    sleeping_--;
    return turn_;
  }

  std::mutex owner_, mutex_;
  std::condition_variable wake_;
  std::atomic<Job*> job_{nullptr};
  std::atomic<uint64_t> turn_{0};
  std::atomic<int64_t> inside_{0}, sleeping_{0};
  int64_t size_ = 0;  // threads; of the owner
};

// Never destroyed, as its threads end with the process. A child of fork has none of them, and makes a team of its own.
std::atomic<Team*> team{nullptr};

Team* the_team() {
  static std::mutex making;
  Team* made = team;
  if (made) return made;
  const std::lock_guard<std::mutex> hold(making);
  if (!team) {
#if defined(__linux__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, [] { team = nullptr; });
    (void)registered;
#endif
    team = new Team;
  }
  return team;
}

}  // namespace

void team_run(int64_t items, int64_t threads, void (*f)(int64_t, int64_t, void*), void* context) {
  if (threads < 2 || items < 2) return f(0, items, context);
  Job job{f, context, items, (items + 2 * threads - 1) / (2 * threads)};
  job.seats = threads - 1;
  the_team()->run(job);
}

}  // namespace gossamer
