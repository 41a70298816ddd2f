"""A repeated call as a function of CPython: in C, operands are compared, the result is allocated, the kernel is called.

In Python this takes 3.5 microseconds, here 1. The C code is compiled like a kernel. Of CPython it uses the stable
interface, of torch a stable function that allocates and the one by which every extension returns a tensor.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.compiler.run import runtime
from gossamer.compiler.run.args import strides_in
from gossamer.native import BuildError
from gossamer.native.direct import WRAP

if TYPE_CHECKING:
    from gossamer.compiler.run.plans import Plan

_NUMBERS = {torch.int32: 3, torch.int64: 4, torch.float32: 6, torch.float64: 7}  # torch's numbers of types
_DIMS = 8  # of a result, at most
_SHORT = 1 << 16  # turns: longer kernels let other threads of Python run meanwhile

SOURCE = """\
typedef struct object object;
typedef struct { const char *name; object *(*f)(object *, object *const *, long); int flags; const char *doc; } method;
object *PyCFunction_NewEx(method *, object *, object *), *PyObject_CallFunctionObjArgs(object *, ...);
object *PyObject_GetAttr(object *, object *), *PyTuple_GetItem(object *, long), *PyErr_Occurred(void);
object *PyUnicode_InternFromString(const char *);
long PyTuple_Size(object *);
int PyObject_IsTrue(object *);
unsigned long long PyLong_AsUnsignedLongLong(object *);
char *PyBytes_AsString(object *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *), PyErr_Clear(void), Py_IncRef(object *), Py_DecRef(object *);

struct known {
  long (*kernel)(void *const *);
  long release, most, parts, zeros, type, dims, out, arrays, sizes[8], strides[8];
  void *arguments[];  /* pool, threads, chunks, sizes, then the arrays */
};
static int (*empty_strided)(long, const long *, const long *, int, int, int, void **);
static int (*delete_tensor)(void *), (*data_of)(void *, void **), (*threads_now)(unsigned *);
static object *(*wrap)(void *), *none, *structure, *values, *data_ptr;

static int yes(object *function, object *argument) {
  object *answer = PyObject_CallFunctionObjArgs(function, argument, (void *)0);
  const int found = answer && PyObject_IsTrue(answer) == 1;
  if (answer) Py_DecRef(answer);
  return found;
}

/* the values of a tensor, if it is like the one before: (slot, guard, weak pattern or None, guard of values) */
static object *like(object *look, object *tensor) {
  object *pattern = PyTuple_GetItem(look, 2);
  if (!yes(PyTuple_GetItem(look, 1), tensor)) return 0;
  if (pattern == none) return Py_IncRef(tensor), tensor;
  object *now = PyObject_GetAttr(tensor, structure), *before = PyObject_CallFunctionObjArgs(pattern, (void *)0);
  object *own = now && now == before ? PyObject_GetAttr(tensor, values) : 0;
  if (now) Py_DecRef(now);
  if (before) Py_DecRef(before);
  if (!own || yes(PyTuple_GetItem(look, 3), own)) return own;
  return Py_DecRef(own), (object *)0;
}

static object *run(const struct known *k, void **arguments) {
  void *out, *data;
  if (empty_strided(k->dims, k->sizes, k->strides, k->type, 0, -1, &out)) return 0;
  data_of(out, &data);
  arguments[4 + k->out] = data;
  if (k->zeros) __builtin_memset(data, 0, k->zeros);
  unsigned threads = 1;
  if (k->most > 1 && !threads_now(&threads) && threads > k->most) threads = k->most;
  arguments[1] = (void *)(long)threads, arguments[2] = (void *)(k->parts ? k->parts : 4 * (long)threads);
  void *state = k->release ? PyEval_SaveThread() : 0;
  k->kernel(arguments);
  if (state) PyEval_RestoreThread(state);
  object *made = wrap(out);
  delete_tensor(out);
  return made;
}

/* again(known or None, looks, tensors) -> the result, or tensors; None: something is not as before */
static object *again(object *self, object *const *a, long count) {
  const struct known *k = a[0] == none ? 0 : (const struct known *)PyBytes_AsString(a[0]);
  const long operands = PyTuple_Size(a[1]), size = k ? 4 + k->arrays : 1;
  object *own[operands + 1], *made = 0;
  void *arguments[size];
  long n = 0;
  if (k) __builtin_memcpy(arguments, k->arguments, sizeof arguments);
  for (; n < operands && operands == PyTuple_Size(a[2]); n++) {
    object *look = PyTuple_GetItem(a[1], n), *at;
    if (!(own[n] = like(look, PyTuple_GetItem(a[2], n)))) break;
    if (!k || !(at = PyObject_CallFunctionObjArgs(data_ptr, own[n], (void *)0))) continue;
    arguments[4 + PyLong_AsUnsignedLongLong(PyTuple_GetItem(look, 0))] = (void *)PyLong_AsUnsignedLongLong(at);
    Py_DecRef(at);
  }
  if (n == operands && !PyErr_Occurred()) made = k ? run(k, arguments) : (Py_IncRef(a[2]), a[2]);
  while (n > 0) Py_DecRef(own[--n]);
  if (made) return made;
  if (PyErr_Occurred()) PyErr_Clear();
  return Py_IncRef(none), none;
}

static method methods[] = {{"again", again, 0x80, "A call like one before, or None."}};

object *python_again(void *const *torch, object *nothing, object *pointer) {
  empty_strided = torch[0], delete_tensor = torch[1], data_of = torch[2], threads_now = torch[3], wrap = torch[4];
  none = nothing, structure = PyUnicode_InternFromString("_structure"), values = PyUnicode_InternFromString("_values");
  data_ptr = pointer, Py_IncRef(pointer);
  return PyCFunction_NewEx(methods, 0, 0);
}
"""
_FUNCTIONS = (
    "aoti_torch_empty_strided", "aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr", "torch_get_num_threads",
)  # fmt: skip


@lru_cache(maxsize=1)
def again() -> Callable[..., Tensor | None] | None:
    """Return the function ``again(known, looks, tensors)``; None where it can't be built.

    ``known`` is that of :func:`packed`. A look has the slot of the values among the arrays, a guard of the tensor, and
    for a sparse one its structure, weak, and a guard of its values. The function returns the result, or None if an
    operand is not like before. If ``known`` is None, operands are only compared, and the result is ``tensors``.
    """
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    if os.environ.get("GOSSAMER_DIRECT", "1") == "0":
        return None
    folder = Path(torch.__file__).parent / "lib"
    try:
        cpu, python = (ctypes.CDLL(str(folder / name)) for name in ("libtorch_cpu.so", "libtorch_python.so"))
        found = [getattr(cpu, name) for name in _FUNCTIONS] + [getattr(python, WRAP)]
        function = runtime.library(SOURCE).python_again
    except (OSError, AttributeError, BuildError):
        return None
    addresses = (ctypes.c_void_p * len(found))(*(ctypes.cast(f, ctypes.c_void_p).value for f in found))
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    made: Callable[..., Tensor | None] = ctypes.cast(function, kind)(ctypes.addressof(addresses), None, Tensor.data_ptr)
    return made


def packed(plan: Plan) -> bytes | None:
    """Return what the C code must know of a plan; None if its calls need more."""
    kernel, dims = plan.kernel, len(plan.out_shape)
    if not plan.quick or plan.dtype not in _NUMBERS or dims > _DIMS or (plan.empty and not kernel.covers):
        return None
    function = ctypes.cast(kernel.fill, ctypes.c_void_p).value or 0
    zeros = 0 if kernel.covers else torch.Size(plan.out_shape).numel() * plan.dtype.itemsize
    threads = 1 if plan.alone else plan.threads
    rest: Sequence[int] = (0,) * (_DIMS - dims)
    numbers: list[Any] = [function, int(plan.turns > _SHORT), threads, plan.parts, zeros, _NUMBERS[plan.dtype], dims]
    numbers += [plan.out_slot, len(plan.pointers), *plan.out_shape, *rest]
    numbers += [*strides_in(plan.out_shape, range(dims)), *rest, kernel.pool, 1, 1, plan.sizes_at, *plan.pointers]
    return struct.pack(f"{len(numbers)}N", *numbers)
