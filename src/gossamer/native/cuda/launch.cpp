// Operators on a GPU without Python: a call whose kind was seen before is launched from here.
//
// Python (calls.py) decides what a call launches: which kernels, which buffers, where each argument comes from. It hands that
// over as a list of integers (gossamer_remember), and from then on a call with tensors of the same types, sizes and strides
// and the same integers takes about 3 us. A call of another kind goes to the operator `<name>_slow`, which is Python's.
//
// Nothing of CUDA is needed to build this: the driver is opened at run time. Of torch, its stable C functions.
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "plan.h"

#ifndef GS_SPACE  // tests put operators of their own on a CPU
#define GS_SPACE "gossamer"
#define GS_KEY "CUDA"
#define GS_DEVICE 1
#endif

extern "C" {
int32_t aoti_torch_get_device_index(Handle, int32_t*);
int32_t torch_call_dispatcher(const char* name, const char* overload, Value* stack, uint64_t version);
}

namespace {

using namespace gossamer_cuda;
using gossamer_torch::TORCH_2_11;

// -- the kind of a call

constexpr int MOST_TENSORS = 12, MOST_WORDS = 160, MOST_ARGUMENTS = 1024, MOST_PLANS = 4096;

struct Key {
  int64_t word[MOST_WORDS];
  int size = 0;
  uint64_t hash = 1469598103934665603ull;

  void add(int64_t w) {
    if (size < MOST_WORDS) word[size++] = w;
    hash = (hash ^ uint64_t(w)) * 1099511628211ull;
  }
  bool operator==(const Key& other) const { return size == other.size && !std::memcmp(word, other.word, size * 8); }
};
struct Hash {
  size_t operator()(const Key& key) const { return size_t(key.hash); }
};

std::shared_mutex guard;
std::unordered_map<Key, std::shared_ptr<const Plan>, Hash> plans;
thread_local Key* asked = nullptr;  // for which Python is about to say what it launches
thread_local std::string failure;    // what Python says was wrong

std::shared_ptr<const Plan> known(const Key& key) {
  std::shared_lock<std::shared_mutex> lock(guard);
  const auto found = plans.find(key);
  return found == plans.end() ? nullptr : found->second;
}

// The tensors of a call, as they are lent, and its kind.
struct Call {
  Handle tensor[MOST_TENSORS] = {};
  unsigned char* at[MOST_TENSORS] = {};
  int count = 0;
  int32_t device = -1;
  Key key;

  // `types`: t a tensor, o an optional one, i an integer.
  Call(int number, const char* types, const Value* stack) {
    key.add(number);
    for (; *types; types++, stack++) {
      if (*types == 'i') {
        key.add(int64_t(*stack));
        continue;
      }
      const Value held = *types == 't' || !*stack ? *stack : *reinterpret_cast<const Value*>(*stack);
      add(reinterpret_cast<Handle>(held));
    }
    key.add(device);
  }

  void add(Handle handle) {
    tensor[count] = handle;
    if (handle) {
      int64_t dim, *sizes, *strides;
      int32_t dtype, index;
      void* data;
      check(aoti_torch_get_dim(handle, &dim));
      check(aoti_torch_get_sizes(handle, &sizes));
      check(aoti_torch_get_strides(handle, &strides));
      check(aoti_torch_get_dtype(handle, &dtype));
      check(aoti_torch_get_device_index(handle, &index));
      check(aoti_torch_get_data_ptr(handle, &data));
      key.add(dtype), key.add(dim);
      for (int64_t d = 0; d < dim; d++) key.add(sizes[d]), key.add(strides[d]);
      if (device == -1) device = index;
      key.add(index);
      at[count] = static_cast<unsigned char*>(data);
    } else {
      key.add(-1);
    }
    count++;
  }

  bool fits(const Plan& plan) const {
    uintptr_t low = 0;
    for (int i = 0; i < count; i++)
      if (plan.aligned >> i & 1) low |= reinterpret_cast<uintptr_t>(at[i]);
    return low % 16 == 0;
  }
};

// -- a call

void launch(const Plan& plan, const Launch& one, Call& call, void* stream) {
  alignas(64) unsigned char arguments[MOST_ARGUMENTS];
  std::memcpy(arguments, one.arguments.data(), one.arguments.size());
  for (const Address& a : one.addresses) {
    unsigned char* const to = call.at[a.of] ? call.at[a.of] + a.plus : nullptr;
    std::memcpy(arguments + a.at, &to, 8);
  }
  const Driver& cuda = driver();
  for (const Box& b : one.boxes) {
    const uint64_t sizes[2] = {uint64_t(b.width), uint64_t(b.height)}, strides[1] = {uint64_t(b.line)};
    const uint32_t box[2] = {64, uint32_t(b.lines)}, steps[2] = {1, 1};
    alignas(64) unsigned char map[128];
    cuda.require_success(cuda.encode(map, 1, 2, call.at[b.of], sizes, strides, box, steps, 0, 3, 0, 0), "a tensor map");
    std::memcpy(arguments + b.at, map, 128);
  }
  void* each[64];
  for (size_t i = 0; i < one.offsets.size(); i++) each[i] = arguments + one.offsets[i];
  Config config = one.config;
  config.stream = stream;
  cuda.require_success(cuda.launch(&config, one.function, each, nullptr), "a launch");
}

struct Current {  // the context of the plan, if it is not this thread's already
  bool pushed = false;
  explicit Current(Context wanted) {
    Context now = nullptr;
    driver().current(&now);
    if (now == wanted) return;
    driver().require_success(driver().push(wanted), "cuCtxPushCurrent");
    pushed = true;
  }
  ~Current() {
    Context old;
    if (pushed) driver().pop(&old);
  }
};

// What is in use between launches is given back after the last: memory is reused in the order of the stream.
struct Made {
  Handle tensor[MOST_TENSORS] = {};
  int count = 0;
  ~Made() {
    for (int i = 0; i < count; i++)
      if (tensor[i]) aoti_torch_delete_tensor_object(tensor[i]);
  }
};

Handle run(const Plan& plan, Call& call) {
  Made made;
  for (const Buffer& b : plan.buffers) {
    Handle& handle = made.tensor[made.count];
    check(aoti_torch_empty_strided(int64_t(b.sizes.size()), b.sizes.data(), b.strides.data(), b.dtype, GS_DEVICE, call.device, &handle));
    made.count++;
    void* data;
    check(aoti_torch_get_data_ptr(handle, &data));
    call.at[call.count++] = static_cast<unsigned char*>(data);
  }
  void* stream = nullptr;
  if (driver().stream) check(driver().stream(call.device, &stream));
  {
    const Current context(plan.context);
    for (const Launch& one : plan.launches) launch(plan, one, call, stream);
  }
  return std::exchange(made.tensor[made.count - 1], nullptr);
}

struct Operator {
  const char* name;
  const char* slow;
  const char* types;
};
// Schemas are declared in Python, beside fake functions and gradients.
constexpr Operator OPERATORS[] = {
#ifdef GS_OPERATORS
  GS_OPERATORS
#else
  {"vnm_linear", GS_SPACE "::vnm_linear_slow", "ttttoiiiii"},
  {"vnm_forward", GS_SPACE "::vnm_linear_slow", "ttttoiiiii"},
  {"vnm_8bit", GS_SPACE "::vnm_8bit_slow", "tttttoiiiii"},
  {"vnm_weight_only", GS_SPACE "::vnm_weight_only_slow", "tttttoiiiii"},
  {"vnm_group", GS_SPACE "::vnm_group_slow", "ttttootiiii"},
  {"vnm_gated", GS_SPACE "::vnm_gated_slow", "tttttootiiii"},
  {"vnm_experts", GS_SPACE "::vnm_experts_slow", "ttottii"},
  {"vnm_experts_8bit", GS_SPACE "::vnm_experts_8bit_slow", "tttottii"},
  {"bitmap_linear", GS_SPACE "::bitmap_linear_slow", "ttttoiiii"},
  {"bitmap_8bit", GS_SPACE "::bitmap_8bit_slow", "tttttoiii"},
  {"decode_attention", GS_SPACE "::decode_attention_slow", "tttoi"},  // a float is taken as its bits
#endif
};
constexpr int COUNT = sizeof(OPERATORS) / sizeof(OPERATORS[0]);

template <int NUMBER> void operate(Value* stack, uint64_t, uint64_t) {
  const Operator& op = OPERATORS[NUMBER];
  Call call(NUMBER, op.types, stack);
  const auto plan = known(call.key);
  if (!plan || !call.fits(*plan)) {
    Key* const before = asked;
    asked = plan ? nullptr : &call.key;
    failure.clear();
    const int32_t error = torch_call_dispatcher(op.slow, "", stack, TORCH_2_11);  // takes the tensors over
    asked = before;
    check(error);
    if (failure.empty()) return;
    gossamer_torch::Tensor{stack[0]};
    throw std::runtime_error(std::exchange(failure, {}));
  }
  Handle out = nullptr;
  std::exception_ptr failed;
  try {
    out = run(*plan, call);
  } catch (...) {
    failed = std::current_exception();
  }
  for (int i = 0; op.types[i]; i++)  // they were lent to be taken over
    if (op.types[i] == 't') gossamer_torch::Tensor{stack[i]};
    else if (op.types[i] == 'o') gossamer_torch::Tensor{gossamer_torch::optional(stack[i])};
  if (failed) std::rethrow_exception(failed);
  stack[0] = reinterpret_cast<Value>(out);
}

template <int NUMBER> void add(TorchLibrary* library) {
  check(torch_library_impl(library, OPERATORS[NUMBER].name, operate<NUMBER>, TORCH_2_11));
  if constexpr (NUMBER + 1 < COUNT) add<NUMBER + 1>(library);
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl(GS_SPACE, GS_KEY, __FILE__, __LINE__, &library));
    add<0>(library);
  }
} registered;

}  // namespace

// What the call under way in this thread launches, as calls.py writes it; returns whether somebody asked.
extern "C" __attribute__((visibility("default"))) int gossamer_remember(const int64_t* words) {
  if (!asked || asked->size >= MOST_WORDS) return 0;  // a longer key was cut
  auto plan = std::make_shared<const Plan>(read({words}));
  for (const Launch& one : plan->launches)
    if (one.arguments.size() > MOST_ARGUMENTS || one.offsets.size() > 64) return 0;
  std::unique_lock<std::shared_mutex> lock(guard);
  if (plans.size() >= MOST_PLANS) plans.clear();  // a server sees every number of tokens
  plans.insert_or_assign(*asked, std::move(plan));
  return 1;
}

// Why the call under way in this thread can't be made: raised where it began, since torch's C functions keep no text.
extern "C" __attribute__((visibility("default"))) void gossamer_refuse(const char* why) { failure = why; }

extern "C" __attribute__((visibility("default"))) void gossamer_forget() {
  std::unique_lock<std::shared_mutex> lock(guard);
  plans.clear();
}
