// Products called from Python without torch's dispatcher: 0.6 us instead of 1.5 us for what is not the kernel.
//
//   rows(values, x, bias or None, number, rows, activation) -> out, as the operator rows_registered
//   int8(weight, x, bias or None, rows, activation) -> out, as the operator int8_linear
//   layer(parameters, buffers, x, (values, bias, ((name, array, its version), ...), number, rows)) -> out, as rows, if the
//       dictionaries of the layer still have these values and bias, and arrays that nothing was written to
//
// They return None for whatever is not a call of plain CPU tensors outside of every mode of torch (tracing, profiling,
// vmap, fake tensors ...) and for arguments that don't fit: then the operator is called, which does it or says why not.
//
// Tensors are read by the table of functions that torch.Tensor offers under DLPack, and results are torch's own tensors,
// by torch's stable C functions and the one function that all its extensions use (THPVariable_Wrap), which Python finds. Of
// CPython the functions of the stable interface are declared by hand, weak: in a program without Python they are not there.
#include <cstdint>
#include <exception>

#include "direct.h"

extern "C" {
struct PyObject;
struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* const* arguments, intptr_t count);
  int flags;
  const char* doc;
};
#define PYTHON __attribute__((weak)) extern
PYTHON PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject* self, PyObject* module);
PYTHON PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PYTHON PyObject* PyObject_Type(PyObject*);
PYTHON int PyObject_IsTrue(PyObject*);
PYTHON void* PyCapsule_GetPointer(PyObject*, const char*);
PYTHON long long PyLong_AsLongLong(PyObject*);
PYTHON PyObject* PyTuple_GetItem(PyObject*, intptr_t);
PYTHON intptr_t PyTuple_Size(PyObject*);
PYTHON PyObject* PyDict_GetItem(PyObject*, PyObject*);  // borrowed; null without an error
PYTHON PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PYTHON PyObject* PyUnicode_InternFromString(const char*);
PYTHON PyObject* PyErr_Occurred();
PYTHON void PyErr_Clear();
PYTHON void* PyEval_SaveThread();
PYTHON void PyEval_RestoreThread(void*);
PYTHON void Py_IncRef(PyObject*);
PYTHON void Py_DecRef(PyObject*);
#undef PYTHON
}

namespace {

using namespace gossamer_torch;

struct DLTensor {
  void* data;
  int32_t device, device_number, dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Exchange {
  uint32_t major, minor;
  void* before;
  int (*allocate)(DLTensor*, void**, void*, void (*)(void*, const char*, const char*));
  int (*lend_whole)(void*, void**);
  int (*take)(void*, void**);
  int (*read)(void* object, DLTensor*);
};

constexpr int FASTCALL = 0x80;         // of METH_...
constexpr int64_t SHORT = 1 << 22;     // multiply-adds: longer products let other threads of Python run meanwhile

const Exchange* torch_table;
PyObject* (*wrap)(Handle);
PyObject *none, *tensor_type, *parameter_type, *is_negative, *modes, *values_name, *bias_name, *version_name;
intptr_t modes_count;

// -1: another type.
int32_t type_of(const DLTensor& t) {
  if (t.lanes != 1) return -1;
  if (t.code == 2 && t.bits == 32) return FLOAT32;
  if (t.code == 4 && t.bits == 16) return BFLOAT16;
  return t.code == 1 && t.bits == 8 ? UINT8 : -1;
}

bool answers_false(PyObject* function, PyObject* argument) {
  PyObject* answer = PyObject_CallFunctionObjArgs(function, argument, nullptr);
  const bool no = answer && !PyObject_IsTrue(answer);
  if (answer) Py_DecRef(answer);
  return no;
}

bool plain_calls() {  // no mode sees or changes calls here
  for (intptr_t i = 0; i < modes_count; i++)
    if (!answers_false(PyTuple_GetItem(modes, i), nullptr)) return false;
  return true;
}

bool read(PyObject* object, DLTensor* to) {
  PyObject* type = PyObject_Type(object);
  Py_DecRef(type);  // the object has one
  if (type != tensor_type && type != parameter_type) return false;
  if (torch_table->read(object, to)) return false;
  int64_t count = 1;
  for (int32_t d = 0; d < to->dims; d++) count *= to->shape[d];
  return to->device == 1 && to->byte_offset == 0 && type_of(*to) >= 0 && (to->data || !count);
}

Tensor view(const DLTensor& t) { return Tensor(t.data, t.dims, t.shape, t.strides, type_of(t)); }

using Direct = Value (*)(const Tensor&, const Tensor&, const Tensor&, const int64_t*);

// The result, or null: no result, and maybe an error of Python.
PyObject* call(Direct product, PyObject* weight, PyObject* x, PyObject* bias, const int64_t* rest) {
  DLTensor seen[3];
  if (!plain_calls() || !read(weight, seen) || !read(x, seen + 1) || (bias != none && !read(bias, seen + 2))) return nullptr;
  if (!answers_false(is_negative, x)) return nullptr;
  const Tensor w = view(seen[0]), tokens = view(seen[1]), shift = bias != none ? view(seen[2]) : Tensor(0);
  if (!w.dim() || !tokens.dim() || tokens.dim() > DIMS) return nullptr;
  void* state = w.size(0) * tokens.tokens() > SHORT ? PyEval_SaveThread() : nullptr;
  Value made = 0;
  try {
    made = product(w, tokens, shift, rest);
  } catch (const std::exception&) {  // the operator says it, in torch's way
  }
  if (state) PyEval_RestoreThread(state);
  if (!made) return nullptr;
  const Tensor out(made);
  return wrap(reinterpret_cast<Handle>(made));
}

bool numbers(PyObject* const* from, int count, int64_t* to) {
  for (int i = 0; i < count; i++) to[i] = PyLong_AsLongLong(from[i]);
  return !PyErr_Occurred();
}

// Is `array` in the dictionary under this name, and was it not written to since it had this version? One that was made in
// inference mode has none: -1.
bool as_before(PyObject* buffers, PyObject* entry) {
  PyObject *array = PyTuple_GetItem(entry, 1), *version = PyTuple_GetItem(entry, 2);
  if (!version || PyDict_GetItem(buffers, PyTuple_GetItem(entry, 0)) != array) return false;
  PyObject* now = PyObject_GetAttr(array, version_name);
  if (!now) PyErr_Clear();
  const long long found = now ? PyLong_AsLongLong(now) : -1;
  if (now) Py_DecRef(now);
  return found == PyLong_AsLongLong(version) && !PyErr_Occurred();
}

PyObject* answer(PyObject* made) {
  if (made) return made;
  if (PyErr_Occurred()) PyErr_Clear();
  Py_IncRef(none);
  return none;
}

PyObject* rows(PyObject*, PyObject* const* a, intptr_t count) {
  int64_t rest[3];
  return answer(count == 6 && numbers(a + 3, 3, rest) ? call(direct_rows, a[0], a[1], a[2], rest) : nullptr);
}

PyObject* int8(PyObject*, PyObject* const* a, intptr_t count) {
  int64_t rest[2];
  return answer(count == 5 && numbers(a + 3, 2, rest) ? call(direct_int8, a[0], a[1], a[2], rest) : nullptr);
}

PyObject* layer(PyObject*, PyObject* const* a, intptr_t count) {
  if (count != 4) return answer(nullptr);
  PyObject *known[5], *bias = PyDict_GetItem(a[0], bias_name);
  for (int i = 0; i < 5; i++)
    if (!(known[i] = PyTuple_GetItem(a[3], i))) return answer(nullptr);
  if (PyDict_GetItem(a[0], values_name) != known[0] || bias != known[1]) return answer(nullptr);
  const intptr_t arrays = PyTuple_Size(known[2]);
  for (intptr_t i = 0; i < arrays; i++)
    if (!as_before(a[1], PyTuple_GetItem(known[2], i))) return answer(nullptr);
  int64_t rest[3] = {};
  return answer(numbers(known + 3, 2, rest) ? call(direct_rows, known[0], a[2], known[1], rest) : nullptr);
}

PyMethodDef methods[] = {
    {"rows", rows, FASTCALL, "The operator rows_registered of plain tensors; None: call the operator."},
    {"int8", int8, FASTCALL, "The operator int8_linear of plain tensors; None: call the operator."},
    {"layer", layer, FASTCALL, "The product of a layer that is as it was before; None: look at it again."},
};

}  // namespace

// What is needed of torch and Python: the capsule of torch.Tensor.__dlpack_c_exchange_api__, the address of
// THPVariable_Wrap, None, the types of plain tensors, Tensor.is_neg, and functions that say whether some mode is active.
// Function i, or null: it is not there, or this torch has another table. Called with the interpreter's lock.
extern "C" __attribute__((visibility("default"))) PyObject* gossamer_direct(
    int32_t i, PyObject* capsule, void* torch_wrap, PyObject* nothing, PyObject* tensor, PyObject* parameter, PyObject* negative,
    PyObject* active) {
  if (!PyCFunction_NewEx || i < 0 || i > 2) return nullptr;
  torch_table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (!torch_table || torch_table->major != 1 || !torch_table->read || !torch_wrap) return nullptr;
  wrap = reinterpret_cast<PyObject* (*)(Handle)>(torch_wrap);
  none = nothing, tensor_type = tensor, parameter_type = parameter, is_negative = negative, modes = active;
  modes_count = PyTuple_Size(modes), values_name = PyUnicode_InternFromString("weight_values");
  bias_name = PyUnicode_InternFromString("bias"), version_name = PyUnicode_InternFromString("_version");
  for (PyObject* kept : {tensor, parameter, negative, active}) Py_IncRef(kept);  // for good
  return PyCFunction_NewEx(methods + i, nullptr, nullptr);
}
