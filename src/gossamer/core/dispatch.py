"""From a call of torch to the function that computes it.

``torch_function`` sees every call from Python, above autograd: entries of the table are written in differentiable
terms, so gradients follow. ``aten`` sees what torch's own machinery calls below autograd (accumulation of gradients,
DDP, tracing); it uses the same table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core import table as registry
from gossamer.core.autocast import LOWERED, lowered
from gossamer.core.fallback import Copies, announce, densify, sparse_leaves
from gossamer.core.lists import PREFIXES, call_list
from gossamer.core.table import Function, Kinds, Operator, operator_of
from gossamer.core.tensor import SparseTensor, WantsDenseGradient
from gossamer.formats import Dense, Format, Masked

#: Calls that ask for, or set, something every tensor has; torch answers them for the wrapper itself.
METADATA = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point",
    "is_complex", "is_signed", "is_inference", "is_conj", "is_neg", "is_same_size", "element_size", "get_device",
    "type", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad", "requires_grad_",
    "backward", "__hash__", "__len__", "__bool__", "is_nonzero", "detach", "grad.get", "grad.set", "_grad.get",
    "grad_fn.get",
    "is_leaf.get", "requires_grad.get", "requires_grad.set", "shape.get", "dtype.get", "device.get", "layout.get",
    "ndim.get", "is_cpu.get", "is_cuda.get", "is_mps.get", "is_xpu.get", "is_meta.get", "is_sparse.get",
    "is_sparse_csr.get", "is_quantized.get", "is_nested.get", "is_mkldnn.get", "names.get", "name.get", "_version.get",
    "output_nr.get", "retains_grad.get", "_backward_hooks.get", "_backward_hooks.set", "_base.get", "itemsize.get",
    "is_vulkan.get", "is_xla.get", "is_ipu.get", "is_maia.get", "is_mtia.get", "volatile.get", "_cdata.get",
    "_is_view", "has_names", "is_shared", "data_ptr", "untyped_storage", "_typed_storage", "grad", "result_type",
    "_use_count", "grad_dtype.get", "grad_dtype.set", "_post_accumulate_grad_hooks.get", "can_cast", "__dir__",
    "_has_symbolic_sizes_strides.get", "_is_zerotensor", "is_distributed", "is_pinned", "is_tensor", "is_storage",
    "_has_compatible_shallow_copy_type", "get_default_device", "access_subclass_inner_tensor",
}  # fmt: skip


def torch_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a call from Python."""
    try:
        return _answer(func, args, kwargs)
    except WantsDenseGradient:  # then it has to be computed on a dense tensor, and there is nothing to warn of
        return func(*densify(args), **densify(kwargs))


def _answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = _DIRECT.get(func)
    if name is not None and not kwargs and not (name in LOWERED and torch._C._is_any_autocast_enabled()):
        for function in find(name, kinds_of(args)):
            result = function(*args)
            if result is not NotImplemented:
                return result
        return on_dense(name, func, args, kwargs)
    operator = operator_of(func)
    name = operator.name
    if name in METADATA or getattr(func, "__module__", None) == "torch.nn.init":  # which fill a tensor step by step
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if not (operator.inplace or operator.swapped or name.startswith(PREFIXES)):
        _DIRECT[func] = name
    if name in LOWERED and torch._C._is_any_autocast_enabled():
        args = lowered(args)
        if next(sparse_leaves((args, kwargs)), None) is None:
            return func(*args, **kwargs)  # a weight that wants a dense gradient is cast to a dense tensor
    return run(operator, func, args, kwargs)


def run(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator by the table, or on dense copies."""
    name = operator.name
    if name.startswith(PREFIXES):
        return call_list(operator, func, args, kwargs)
    if operator.inplace or kwargs.get("inplace"):
        return _SPECIAL["inplace"](operator, func, args, kwargs)
    if kwargs:
        if kwargs.get("out") is not None:
            return _SPECIAL["out"](operator, func, args, kwargs)
        args, kwargs = _positional(name, args, {k: v for k, v in kwargs.items() if k not in ("out", "inplace")})
    ordered = (args[1], args[0], *args[2:]) if operator.swapped else args
    for function in find(name, kinds_of(ordered), tuple(kwargs)):
        result = function(*ordered, **kwargs)
        if result is not NotImplemented:
            return result
    return on_dense(name, func, args, kwargs)


def on_dense(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute on dense copies. (For Masked that is its own storage, and no loss.)"""
    announce(name, tuple(k.__name__ for k in kinds_of((*args, *kwargs.values())) if k is not None))
    copies: Copies = []
    dense_args, dense_kwargs = densify((args, kwargs), copies)
    out = func(*dense_args, **dense_kwargs)
    return out if torch.compiler.is_compiling() else _SPECIAL["written"](name, out, copies)


_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def kinds_of(args: tuple[Any, ...]) -> Kinds:
    """Return the format class of each argument; None for what is no tensor."""
    return tuple([kind_of(a) for a in args])


def kind_of(value: Any) -> type[Format] | None:
    """Return the format class of one argument; of a list, the class that all its tensors share."""
    if type(value) in _PLAIN:  # looked up sooner than any isinstance, and most arguments are
        return Dense
    if isinstance(value, SparseTensor):
        return type(value.format)
    if isinstance(value, Tensor):
        return Dense
    if isinstance(value, (list, tuple)):
        kinds = {kind_of(v) for v in value} - {None}
        return kinds.pop() if len(kinds) == 1 else Format if kinds else None
    return None


def find(name: str, kinds: Kinds, keywords: tuple[str, ...] = ()) -> tuple[Function, ...]:
    """Return the functions to try for an operator, formats and options, best first; none means the dense fallback."""
    found = registry._FOUND.get((name, kinds, keywords))
    if found is None:
        fitting = [entry for entry in registry.candidates(name, kinds) if registry.knows(entry, keywords)]
        functions = [_complete(entry, kinds) for entry in fitting]
        if not functions:
            converted = conversion(name, kinds)
            if converted is not None and registry.knows(converted[0], keywords):
                functions = [_converting(*converted)]
        found = registry._FOUND[name, kinds, keywords] = tuple(functions)
    return found


# A trace may take the answer as a constant: formats are part of what it is guarded on.
find._dynamo_marked_constant = True  # type: ignore[attr-defined]


def conversion(name: str, kinds: Kinds) -> tuple[registry.Entry, tuple[type[Format], ...]] | None:
    """Return an entry that fits once sparse inputs are converted to its formats, losing nothing."""
    for entry in reversed(registry.entries(name)):
        wanted = tuple(f if _lossless(k, f) else k for k, f in zip(kinds, entry.formats, strict=False))
        if entry.inline is None and registry.matches(entry, wanted + kinds[len(wanted) :]):
            return entry, entry.formats
    return None


def _lossless(kind: type[Format] | None, target: type[Format]) -> bool:
    """Can a tensor of this kind become the target without storing more or fewer positions?"""
    if kind is None or issubclass(kind, Dense) or issubclass(kind, target) or target in (Format, Dense, Masked):
        return False
    return target.any_pattern


def _converting(entry: registry.Entry, targets: tuple[type[Format], ...]) -> Function:
    function = _complete(entry, ())

    def convert(value: Any, target: type[Format]) -> Any:
        wrong = isinstance(value, SparseTensor) and not isinstance(value.format, target)
        return value.to_format(target()) if wrong else value

    def converted(*args: Any, **kwargs: Any) -> Any:
        moved = [convert(a, t) for a, t in zip(args, targets, strict=False)]
        return function(*moved, *args[len(moved) :], **kwargs)

    return converted


def _complete(entry: registry.Entry, kinds: Kinds) -> Function:
    """Return the function of an entry, with a bias and the like that were left out as None, and its own backward."""
    function = entry.function
    backward = registry.backward_of(entry.operator, kinds)
    if backward is not None:
        function = _SPECIAL["backward"](function, backward.function)
    if entry.required < 3:  # nothing that can be left out
        return function

    def complete(*args: Any, **kwargs: Any) -> Any:
        missing = entry.required - len(args) - len(kwargs)
        return function(*args, *(None,) * missing, **kwargs) if missing > 0 else function(*args, **kwargs)

    return complete


def _positional(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move tensors given by keyword to their places, so that their formats are seen."""
    if not any(isinstance(v, SparseTensor) for v in kwargs.values()):
        return args, kwargs
    names = _PARAMETERS.get(name, ("input", "other"))
    kwargs = dict(kwargs)
    moved = list(args)
    for parameter in names[len(args) :]:
        if parameter not in kwargs:
            break
        moved.append(kwargs.pop(parameter))
    return tuple(moved), kwargs


_PARAMETERS = {
    "linear": ("input", "weight", "bias"),
    "conv2d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "embedding": ("input", "weight"),
    "mm": ("input", "mat2"), "bmm": ("input", "mat2"), "mv": ("input", "vec"), "addmm": ("input", "mat1", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"), "addmv": ("input", "mat", "vec"), "cat": ("tensors", "dim"),
    "stack": ("tensors", "dim"), "addcmul": ("input", "tensor1", "tensor2"), "addcdiv": ("input", "tensor1", "tensor2"),
    "lerp": ("input", "end", "weight"),
}  # fmt: skip

#: Callables that need no second look, with the name of their operator: the short way for a call without keywords.
_DIRECT: dict[Any, str] = {}

#: Parts of dispatch that stand in files of their own and come back here: in place, out=, own backward.
_SPECIAL: dict[str, Function] = {}
