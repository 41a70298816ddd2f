// The team: every item once, whoever runs it; several callers at once; a child of fork.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "team.h"

static int count_wrong(int rounds, unsigned seed) {
  int bad = 0;
  for (int i = 0; i < rounds; i++) {
    seed = seed * 1664525u + 1013904223u;
    std::vector<int> times(1 + seed % 50);
    team_run(int64_t(times.size()), 1 + seed / 64 % 4, [](int64_t begin, int64_t end, void* context) {
      for (int64_t at = begin; at < end; at++) (*static_cast<std::vector<int>*>(context))[at]++;
    }, &times);
    for (int n : times) bad += n != 1;
    if (i % 100 == 99) usleep(50);  // the others go to sleep
  }
  return bad;
}

static void team() {
  std::vector<int> bad(5);
  std::vector<std::thread> callers;
  for (unsigned i = 0; i < 4; i++) callers.emplace_back([&bad, i] { bad[i] = count_wrong(500, i); });
  for (std::thread& caller : callers) caller.join();
  const pid_t child = fork();
  if (!child) _exit(count_wrong(100, 9) != 0);
  int status = 0;
  waitpid(child, &status, 0);
  bad[4] = status;
  for (int n : bad)
    if (n && failures++ < 10) printf("team: %d items not run once\n", n);
  cases++;
}
