// torch's stable C functions, declared by hand, and what the operators need of them: tensors as they are lent, results,
// torch's own threads. No header of torch is read, and one binary serves torch 2.11 and every later one.
#pragma once
#include <pthread.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

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
int32_t aoti_torch_delete_tensor_object(Handle);
int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t, int64_t, void*), void*);
}

namespace gossamer_torch {

constexpr int64_t DIMS = 8;  // of a tensor, at most
constexpr uint64_t TORCH_2_11 = (2ull << 56) | (11ull << 48);
constexpr int32_t UINT8 = 0, INT8 = 1, INT32 = 3, FLOAT32 = 6, BFLOAT16 = 15;  // torch's numbers of these types, the same in every version

inline void check(int32_t error) {
  if (error) throw std::runtime_error("gossamer: a function of torch failed");
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(std::string("gossamer: ") + message);
}

class Tensor {  // owns the handle that torch lends to an operator; or a view of a tensor that Python holds meanwhile
 public:
  explicit Tensor(Value v) : handle_(reinterpret_cast<Handle>(v)) {
    if (!handle_) return;
    check(aoti_torch_get_dim(handle_, &dims_)), check(aoti_torch_get_dtype(handle_, &type_));
    check(aoti_torch_get_sizes(handle_, &sizes_)), check(aoti_torch_get_strides(handle_, &strides_));
  }
  Tensor(void* data, int64_t dims, int64_t* sizes, int64_t* strides, int32_t type)
      : handle_(nullptr), view_(true), data_(data), dims_(dims), sizes_(sizes), strides_(strides), type_(type) {}
  Tensor(const Tensor&) = delete;
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }
  explicit operator bool() const { return handle_ || view_; }
  Value release() {
    const Value v = reinterpret_cast<Value>(handle_);
    handle_ = nullptr;
    return v;
  }
  int64_t dim() const { return dims_; }
  int64_t size(int64_t i) const { return sizes_[i]; }
  int64_t stride(int64_t i) const { return strides_[i]; }
  bool contiguous() const {
    int64_t expected = 1;
    for (int64_t d = 0; d < dim(); d++)
      if (!size(d)) return true;
    for (int64_t d = dim() - 1; d >= 0; expected *= size(d), d--)
      if (size(d) > 1 && stride(d) != expected) return false;
    return true;
  }
  int32_t dtype() const { return type_; }
  template <class T> T* data(int32_t type, const char* name) const {
    void* p = data_;
    require(type_ == type, name);
    if (!view_) check(aoti_torch_get_data_ptr(handle_, &p));
    return static_cast<T*>(p);
  }
  // A matrix [..., cols]: its rows are the tokens, `lead` elements apart. Strides that don't allow that cost a copy, in `own`.
  template <class T = float>
  const T* matrix(int64_t cols, const char* name, int64_t* lead, std::vector<T>& own, int32_t type = FLOAT32) const {
    const int64_t last = dim() - 1;
    require(last >= 0 && last < DIMS && size(last) == cols, name);
    const T* from = data<const T>(type, name);
    int64_t rows = 1;
    bool even = cols <= 1 || stride(last) == 1;
    *lead = cols;
    for (int64_t d = last - 1; even && d >= 0; d--) {
      if (size(d) == 1) continue;  // its stride says nothing
      if (!size(d)) return from;   // no tokens: nothing is read
      if (rows == 1) *lead = stride(d);
      even = stride(d) == rows * *lead;
      rows *= size(d);
    }
    return even ? from : copied(from, cols, lead, own);
  }
  int64_t tokens() const {  // of such a matrix
    int64_t count = 1;
    for (int64_t d = 0; d < dim() - 1; d++) count *= size(d);
    return count;
  }
  template <class T> const T* copied(const T* from, int64_t cols, int64_t* lead, std::vector<T>& own) const {
    const int64_t last = dim() - 1, count = tokens(), step = stride(last);
    own.resize(count * cols), *lead = cols;
    for (int64_t token = 0; token < count; token++) {
      int64_t rest = token, at = 0;
      for (int64_t d = last - 1; d >= 0; rest /= size(d), d--) at += rest % size(d) * stride(d);
      for (int64_t c = 0; c < cols; c++) own[token * cols + c] = from[at + c * step];
    }
    return own.data();
  }
  template <class T> T* line(int32_t dtype, int64_t length, const char* name) const {
    require(dim() == 1 && size(0) == length && (length <= 1 || stride(0) == 1), name);
    return data<T>(dtype, name);
  }

 private:
  Handle handle_;
  bool view_ = false;
  void* data_ = nullptr;  // of a view
  int64_t dims_ = 0, *sizes_ = nullptr, *strides_ = nullptr;
  int32_t type_ = -1;
};

inline Value optional(Value v) {
  if (!v) return 0;
  Value* box = reinterpret_cast<Value*>(v);
  const Value inner = *box;
  delete box;
  return inner;
}

inline Handle empty(int64_t dims, const int64_t* sizes, int32_t dtype = FLOAT32) {
  int64_t strides[DIMS];
  strides[dims ? dims - 1 : 0] = 1;
  for (int64_t d = dims - 2; d >= 0; d--) strides[d] = strides[d + 1] * sizes[d + 1];
  const int64_t bytes = (dims ? strides[0] * sizes[0] : 1) * (dtype == UINT8 ? 1 : dtype == BFLOAT16 ? 2 : 4);
  Handle out;
  check(aoti_torch_empty_strided(dims, sizes, strides, dtype, 0, -1, &out));
  void* data = nullptr;
  if (bytes >= LARGE && !aoti_torch_get_data_ptr(out, &data)) in_large_pages(data, bytes);
  return out;
}

// Memory for the result of a product: the dimensions of x, with `rows` in place of the last.
inline Handle empty_like(const Tensor& x, int64_t rows, int32_t dtype = FLOAT32) {
  int64_t sizes[DIMS];
  const int64_t dims = x.dim();
  for (int64_t d = 0; d < dims - 1; d++) sizes[d] = x.size(d);
  sizes[dims - 1] = rows;
  return empty(dims, sizes, dtype);
}

// Multiply-adds: torch's second thread costs 2 us and more, and saves as much from here on. Threads are always torch's: the
// code between our products uses them, and while they look for work, for a millisecond, other threads would wait for a core.
// Tried: threads of our own for calls from Python. Alone they took less of a short product and never waited for a thread
// that was not running; in models with two threads they were in the way (Llama of 768, 2:4 int8, one token: 2.8 ms, by one
// thread 2.7, by torch's threads 2.0; six MLPs 768-3072-768: 0.56, 0.52, 0.28).
constexpr int64_t WORTH_A_THREAD = 100000;

// In a child of fork, torch waits forever for threads that only its parent has: one thread computes there.
inline bool forked = false;
inline const int at_fork = pthread_atfork(nullptr, nullptr, [] { forked = true; });

template <class Job> void parallel(int64_t items, int64_t work, Job* job) {
  if (items < 2 || work < WORTH_A_THREAD || forked) return Job::run(0, items, job);
  check(torch_parallel_for(0, items, 1, Job::run, job));
}

}  // namespace gossamer_torch
