// torch's stable C functions, declared by hand, and what the operators need of them: tensors as they are lent, results,
// torch's own threads. No header of torch is read, and one binary serves torch 2.11 and every later one.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "large.h"

using Value = uint64_t;  // what torch calls StableIValue: an integer, or a pointer
struct AtenTensor;
using Handle = AtenTensor*;
struct TorchLibrary;

extern "C" {
int32_t aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line, TorchLibrary**);
int32_t torch_library_impl(TorchLibrary*, const char* name, void (*)(Value*, uint64_t, uint64_t), uint64_t version);
int32_t aoti_torch_get_data_ptr(Handle, void**);
int32_t aoti_torch_get_sizes(Handle, int64_t**);
int32_t aoti_torch_get_strides(Handle, int64_t**);
int32_t aoti_torch_get_dim(Handle, int64_t*);
int32_t aoti_torch_get_dtype(Handle, int32_t*);
int32_t aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
int32_t torch_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t offset, int32_t dtype, int32_t device,
                        int32_t index, Handle*, int32_t layout, const uint8_t*, int64_t, void (*)(void*, void*), void*);
int32_t aoti_torch_delete_tensor_object(Handle);
int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t, int64_t, void*), void*);
}

namespace gossamer_torch {

constexpr uint64_t TORCH_2_11 = (2ull << 56) | (11ull << 48);
constexpr int32_t UINT8 = 0, INT8 = 1, INT32 = 3, FLOAT32 = 6, BFLOAT16 = 15;  // torch's numbers of these types, the same in every version

inline void check(int32_t error) {
  if (error) throw std::runtime_error("gossamer: a function of torch failed");
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(std::string("gossamer: ") + message);
}

class Tensor {  // owns the handle that torch lends to an operator
 public:
  explicit Tensor(Value v) : handle_(reinterpret_cast<Handle>(v)) {}
  Tensor(const Tensor&) = delete;
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }
  explicit operator bool() const { return handle_; }
  Value release() {
    const Value v = reinterpret_cast<Value>(handle_);
    handle_ = nullptr;
    return v;
  }
  int64_t dim() const {
    int64_t d;
    return check(aoti_torch_get_dim(handle_, &d)), d;
  }
  int64_t size(int64_t i) const {
    int64_t* s;
    return check(aoti_torch_get_sizes(handle_, &s)), s[i];
  }
  int64_t stride(int64_t i) const {
    int64_t* s;
    return check(aoti_torch_get_strides(handle_, &s)), s[i];
  }
  bool contiguous() const {
    int64_t expected = 1;
    for (int64_t d = dim() - 1; d >= 0; expected *= size(d), d--)
      if (size(d) > 1 && stride(d) != expected) return false;
    return true;
  }
  int32_t dtype() const {
    int32_t d;
    return check(aoti_torch_get_dtype(handle_, &d)), d;
  }
  template <class T> T* data(int32_t type, const char* name) const {
    void* p;
    require(dtype() == type, name);
    check(aoti_torch_get_data_ptr(handle_, &p));
    return static_cast<T*>(p);
  }
  template <class T = float>
  const T* matrix(int64_t cols, const char* name, int64_t* lead, int32_t type = FLOAT32) const {  // contiguous rows
    require(dim() == 2 && size(1) == cols && (size(1) <= 1 || stride(1) == 1), name);
    *lead = stride(0);
    return data<const T>(type, name);
  }
  template <class T> T* line(int32_t dtype, int64_t length, const char* name) const {
    require(dim() == 1 && size(0) == length && (length <= 1 || stride(0) == 1), name);
    return data<T>(dtype, name);
  }

 private:
  Handle handle_;
};

inline Value optional(Value v) {
  if (!v) return 0;
  Value* box = reinterpret_cast<Value*>(v);
  const Value inner = *box;
  delete box;
  return inner;
}

inline Handle empty(int64_t dims, const int64_t* sizes, int32_t dtype = FLOAT32) {  // up to three
  int64_t strides[3] = {1, 1, 1};
  for (int64_t d = dims - 2; d >= 0; d--) strides[d] = strides[d + 1] * sizes[d + 1];
  const int64_t bytes = (dims ? strides[0] * sizes[0] : 1) * (dtype == UINT8 ? 1 : dtype == BFLOAT16 ? 2 : 4);
  Handle out;
  if (Large::suits(bytes)) {
    const Large memory(bytes);
    void* size = reinterpret_cast<void*>(uintptr_t(memory.size));
    if (memory.data) {
      if (!torch_from_blob(memory.data, dims, sizes, strides, 0, dtype, 0, -1, &out, 0, nullptr, 0, Large::give_back, size))
        return out;
      Large::give_back(memory.data, size);
    }
  }
  check(aoti_torch_empty_strided(dims, sizes, strides, dtype, 0, -1, &out));
  return out;
}

// Below this many multiply-adds, waking a second thread costs more than it saves.
constexpr int64_t WORTH_A_THREAD = 1 << 17;

template <class Job> void parallel(int64_t items, int64_t work, Job* job) {
  if (items < 2 || work < WORTH_A_THREAD) return Job::run(0, items, job);
  check(torch_parallel_for(0, items, 1, Job::run, job));
}

}  // namespace gossamer_torch
