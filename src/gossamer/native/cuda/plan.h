// What a call launches, read from the list of integers that calls.py writes.
#pragma once
#include <cstring>
#include <vector>

#include "driver.h"

namespace gossamer_cuda {

struct Buffer {
  int32_t dtype;
  std::vector<int64_t> sizes, strides;
};
struct Address {
  int64_t at, of, plus;  // where in the arguments; of which tensor, and so many bytes further
};
struct Box {
  int64_t at, of, width, height, line, lines;
};
struct Launch {
  void* function;
  Config config;
  std::vector<int64_t> offsets;  // of the kernel's parameters in `arguments`
  std::vector<unsigned char> arguments;
  std::vector<Address> addresses;
  std::vector<Box> boxes;
};
struct Plan {
  Context context;
  uint64_t aligned;  // bit i: tensor i must lie at a multiple of 16 bytes
  std::vector<Buffer> buffers;  // the last one is the result
  std::vector<Launch> launches;
};

struct Reader {
  const int64_t* at;
  int64_t next() { return *at++; }
  template <class T> T pointer() { return reinterpret_cast<T>(next()); }
  std::vector<int64_t> list() {
    const int64_t count = next();
    std::vector<int64_t> made(at, at + count);
    at += count;
    return made;
  }
};

inline Plan read(Reader r) {
  Plan plan{r.pointer<Context>(), uint64_t(r.next()), {}, {}};
  for (int64_t left = r.next(); left > 0; left--) {
    const int32_t dtype = int32_t(r.next());
    auto sizes = r.list();
    plan.buffers.push_back({dtype, sizes, r.list()});
  }
  for (int64_t left = r.next(); left > 0; left--) {
    Launch launch{};
    launch.function = r.pointer<void*>();
    for (auto& size : launch.config.grid) size = uint32_t(r.next());
    launch.config.threads[0] = uint32_t(r.next()), launch.config.threads[1] = launch.config.threads[2] = 1;
    launch.config.shared = uint32_t(r.next());
    launch.config.attributes = &CHAINED, launch.config.count = uint32_t(r.next());
    launch.offsets = r.list();
    const auto words = r.list();
    launch.arguments.resize(words.size() * 8);
    std::memcpy(launch.arguments.data(), words.data(), words.size() * 8);
    for (int64_t n = r.next(); n > 0; n--) {
      const int64_t at = r.next(), of = r.next();
      launch.addresses.push_back({at, of, r.next()});
    }
    for (int64_t n = r.next(); n > 0; n--) {
      Box box;
      box.at = r.next(), box.of = r.next(), box.width = r.next(), box.height = r.next(), box.line = r.next(), box.lines = r.next();
      launch.boxes.push_back(box);
    }
    plan.launches.push_back(std::move(launch));
  }
  return plan;
}

}  // namespace gossamer_cuda
