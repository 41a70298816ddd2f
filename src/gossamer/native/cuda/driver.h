// The CUDA driver, opened at run time: nothing of CUDA is needed to build this.
#pragma once
#include <dlfcn.h>

#include "../cpu/torch_abi.h"

#ifndef GS_DRIVER
#define GS_DRIVER "libcuda.so.1"
#endif

namespace gossamer_cuda {

using gossamer_torch::check;
using gossamer_torch::require;
using Context = void*;

struct Attribute {  // CUlaunchAttribute
  int32_t id, unused, value[16];
};
struct Config {  // CUlaunchConfig
  uint32_t grid[3], threads[3], shared;
  void* stream;
  const Attribute* attributes;
  uint32_t count;
};
const Attribute CHAINED = {6, 0, {1}};  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

struct Driver {
  int (*launch)(const Config*, void* function, void** arguments, void** extra);
  int (*encode)(void* map, int type, uint32_t rank, void* at, const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                const uint32_t* steps, int, int swizzle, int, int);
  int (*current)(Context*);
  int (*push)(Context);
  int (*pop)(Context*);
  int (*name)(int error, const char**);
  int32_t (*stream)(int32_t device, void** stream);  // torch's current one; null in tests without CUDA (GS_NO_STREAM)

  template <class F> static void find(F& f, void* library, const char* symbol) {
    f = reinterpret_cast<F>(dlsym(library, symbol));
    require(f, symbol);
  }
  Driver() {
    void* library = dlopen(GS_DRIVER, RTLD_NOW);
    require(library, "no CUDA driver on this machine: " GS_DRIVER);
    find(launch, library, "cuLaunchKernelEx");
    find(encode, library, "cuTensorMapEncodeTiled");
    find(current, library, "cuCtxGetCurrent");
    find(push, library, "cuCtxPushCurrent_v2");
    find(pop, library, "cuCtxPopCurrent_v2");
    find(name, library, "cuGetErrorName");
#ifdef GS_NO_STREAM
    stream = nullptr;
#else
    void* torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);  // in the process already, its symbols are not global
    require(torch, "libtorch_cuda.so is not loaded");
    find(stream, torch, "aoti_torch_get_current_cuda_stream");
#endif
  }
  void require_success(int error, const char* what) const {
    if (!error) return;
    const char* text = nullptr;
    name(error, &text);
    throw std::runtime_error(std::string("gossamer: ") + what + " failed: " + (text ? text : "unknown error"));
  }
};

inline const Driver& driver() {
  static const Driver made;
  return made;
}

}  // namespace gossamer_cuda
