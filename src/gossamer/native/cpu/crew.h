// Threads of our own for products that take some microseconds. torch's pool gives each thread its share and waits for all:
// on a machine whose cores are busy with other programs a product of 10 us then waits 10 ms for a thread that is not
// running. Here whoever is running takes the next part, so the caller waits only for parts that a thread has begun, and
// does all of them itself if no other thread comes.
#pragma once
#include <cstdint>

namespace gossamer {

// Call run(begin, end, job) for parts of [0, items) on up to `threads` threads, this one among them; return when all are
// done. False: one of them threw. If another thread is being helped already, this one works alone.
bool share(int64_t items, int64_t threads, void (*run)(int64_t begin, int64_t end, void* job), void* job);

}  // namespace gossamer
