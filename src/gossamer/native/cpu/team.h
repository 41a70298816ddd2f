// A few threads for work of some microseconds: one token of a layer. No torch.
//
// torch's pool (OpenMP) splits work evenly and waits for every thread. That takes 0.7 us while its threads spin, some
// milliseconds after the last use, and 10 to 20 us when they sleep; but if other programs use the processors, the caller
// waits until the scheduler has run each thread: 10 to 20 ms were measured for 4 us of work. Here the caller takes parts
// of the work itself until none is left, and waits for those only who have begun one. A thread spins for SPIN after a
// job, for the next layer, and then sleeps; to wake it takes the caller 1.5 us.
#pragma once
#include <cstdint>

namespace gossamer {

// Calls f(begin, end, context) for parts of [0, items), by the calling thread and up to threads - 1 others; which thread
// has which part is not determined. If another thread is using the team, the caller does it all.
void team_run(int64_t items, int64_t threads, void (*f)(int64_t, int64_t, void*), void* context);

}  // namespace gossamer
