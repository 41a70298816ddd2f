"""Experts of a mixture of experts in FP8 or int8, 2:4 or V:N:M, for a GPU; on a CPU they compute the same, slowly.

The two weights have a scale for each row of each expert, tokens one each, as in :mod:`gossamer.models.quantized`: the
input of an expert is rounded before its first product, and what lies between its products before the second. All
experts multiply their tokens in one launch; how many each has stays on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.quantized.stack import check_layout, check_stack, decoded_stack, experts_product
from gossamer.kernels.quantized.weight import Arrays
from gossamer.models.grouped import grouped, names_of, read_columns
from gossamer.models.quantized import PARTS, in_type, read_format
from gossamer.models.quantized_common import check_tokens, dtype_after
from gossamer.models.quantized_stack import ExpertsWeight, QuantizedStack, arrays_in
from gossamer.models.routed import is_expert_parallel
from gossamer.models.stored import transforming
from gossamer.ops.explain import Explanation

#: Of each weight: its arrays and its layout; and its experts, rows and columns.
Stacks = Mapping[str, tuple[Arrays, QuantizedStack]]
_TORCHS = frozenset(nn.Module().__dict__) - {"training"}


class QuantizedExperts(nn.Module):
    """Experts whose weights have 8 bits, as the class of transformers computes them otherwise: its gate, norm, biases.

    Made by ``gs.quantize_(model, "fp8")``, and ``"int8"`` on a GPU, of experts whose weights are both 2:4 or
    ``all:2:m``. The class of the module is a subclass of this one and of the one that it had. It is for inference:
    gradients go through it to the tokens and biases as if nothing were rounded, by way of dense weights; the weights
    have none.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from transformers import MixtralConfig, MixtralForCausalLM
    >>> config = MixtralConfig(
    ...     vocab_size=32, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    ...     num_key_value_heads=1, num_local_experts=4,
    ... )
    >>> model = gs.sparsify_(MixtralForCausalLM(config), {"*experts*": "2:4", "*": None})
    >>> gs.quantize_(model, "fp8", where="*experts*").model.layers[0].mlp.experts
    QuantizedMixtralExperts(
      experts=4, gate_up_proj=fp8 2:4, down_proj=fp8 2:4
      (act_fn): SiLUActivation()
    )
    >>> with torch.no_grad():
    ...     model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 32])
    """

    _stacks: dict[str, QuantizedStack]
    _dense_class: Any
    #: Type of the weights before they were quantized; :meth:`as_dense` uses it again.
    weights_dtype: torch.dtype
    #: transformers initialises what a file lacks by writing to a weight; what lacks here is refused instead.
    _is_hf_initialized = True

    def _hold(self, name: str, arrays: Arrays, stack: QuantizedStack) -> None:
        """Hold the arrays of one weight."""
        check_layout(stack.layout, stack.shape)
        self._stacks[name] = stack
        for part, array in zip(PARTS, arrays, strict=True):
            self.register_buffer(f"{name}_{part}", array)
        self._note(self.weights_dtype)

    def _note(self, dtype: torch.dtype) -> None:
        """Note the type of the weights, also for a file."""
        self.weights_dtype = dtype
        for name, stack in self._stacks.items():
            text = list(f"{stack.layout}, {str(dtype).removeprefix('torch.')}".encode())
            device = self._values(name).device
            self.register_buffer(f"{name}_format", torch.tensor(text, dtype=torch.uint8, device=device))

    def _values(self, name: str) -> Tensor:
        return self._buffers[f"{name}_values"]  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._values(next(iter(self._stacks))).device

    @property
    def stacks(self) -> dict[str, QuantizedStack]:
        """What is known of each weight, by name."""
        return self._stacks

    def arrays(self, name: str) -> Arrays:
        """Return the arrays of a weight."""
        return arrays_in(self._buffers, name)

    def forward(self, *args: Any, **options: Any) -> Tensor:
        """Return the sum of the chosen experts of each token, by their shares, of the type of the tokens."""
        given = (*args, *options.values())
        if len(given) != 3 or is_expert_parallel(self) or transforming() or self._records(given):
            return self._by_dense_weights(*args, **options)
        x, index, shares = given
        check_tokens(x, self._stacks[names_of(self)[0]].shape[2])
        with torch.no_grad():
            return grouped(self, x, index, shares, _projected)

    def _records(self, given: tuple[Any, ...]) -> bool:
        """Is a gradient wanted for what is given?"""
        return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given)

    def _by_dense_weights(self, *args: Any, **options: Any) -> Tensor:
        own: Any = self._dense_class.forward
        if torch.compiler.is_compiling():
            out: Tensor = own(self, *args, **options)  # its weights are decoded in the trace
        else:
            out = own.__wrapped__(self.as_dense(), *args, **options)
        return out

    def as_dense(self) -> nn.Module:
        """Return a module of the class that it had, with the same weights."""
        made = _copied(self, self._dense_class)
        for name, stack in self._stacks.items():
            weight = decoded_stack(self.arrays(name), stack.layout, stack.shape, self.weights_dtype)
            made.register_parameter(name, nn.Parameter(weight))
        return _without(made, [f"{name}_{part}" for name in self._stacks for part in (*PARTS, "format")], self)

    def explain(self, *args: Any) -> Explanation:
        """Return what computes the products, and why, for :func:`gossamer.explain`."""
        layouts = tuple(f"{name}: {stack.layout}" for name, stack in self._stacks.items())
        why = f"{', '.join(layouts)}; activations quantized token by token"
        reason = next(iter(self._stacks.values())).refusal(self.device)
        formats = tuple(str(stack.layout) for stack in self._stacks.values())
        if reason is None:
            return Explanation("experts", formats, "native", "vnm_experts_8bit", f"{why}; one launch for each weight")
        why = f"{why}; {reason}: each expert is made dense"
        return Explanation("experts", formats, "fallback", "torch.matmul", why)

    def check(self) -> None:
        """Raise ValueError if arrays, which may come from a file, are not those of such weights."""
        for name, stack in self._stacks.items():
            check_stack(self.arrays(name), stack.layout, stack.shape)

    # -- where torch moves, copies, saves and loads modules

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        dtype = dtype_after(fn, self.weights_dtype, self.device)
        names = [f"{name}_{part}" for name in self._stacks for part in (*PARTS, "format")]
        own = {id(array) for array in map(self._buffers.get, names) if array is not None}
        super()._apply(lambda tensor: in_type(fn, tensor) if id(tensor) in own else fn(tensor), recurse)
        if dtype is not self.weights_dtype:
            self._note(dtype)
        return self

    def settle(self) -> None:
        """Keep the type that the weights have in their model after arrays were loaded, whatever it was in the file."""
        self._note(self.weights_dtype)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        given, dtype = {}, self.weights_dtype
        for name, stack in self._stacks.items():
            text, arrays = state_dict.get(f"{prefix}{name}_format"), arrays_in(state_dict, f"{prefix}{name}")
            if text is None or arrays.values is None or arrays.scale is None or arrays.values.is_meta:
                continue
            layout, _ = read_format(text)  # another layout has other arrays
            check_stack(arrays, layout, stack.shape)
            given[name] = arrays, stack._replace(layout=layout)
        for name, (arrays, stack) in given.items():
            empty = (None if array is None else torch.empty_like(array, device=self.device) for array in arrays)
            self._hold(name, Arrays(*empty), stack)  # type: ignore[arg-type]
        if given:  # the text in the state may be longer or shorter
            texts = {f"{prefix}{name}_format": self._buffers[f"{name}_format"] for name in given}
            state_dict = {**state_dict, **texts}
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._note(dtype)
        parts = {f"{prefix}{name}_{part}" for name in self._stacks if name not in given for part in PARTS}
        if self.device.type != "meta" and not parts.isdisjoint(state_dict):
            self.check()  # some arrays without the others

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self._dense_class, tuple(self._stacks)), self.__getstate__()

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        layouts = (f"{name}={stack.layout}" for name, stack in self._stacks.items())
        return f"experts={next(iter(self._stacks.values())).shape[0]}, {', '.join(layouts)}"


def quantized_experts(module: Any, dense: Any, stacks: Stacks, dtype: torch.dtype) -> QuantizedExperts:
    """Return experts with these quantized weights, and all else of a module.

    Parameters
    ----------
    module
        Experts with dense, sparse or quantized weights; it is not changed.
    dense
        The class that it has if they are dense.
    stacks
        Both weights, by name.
    dtype
        Type of the weights before.
    """
    made: Any = _copied(module, _class_of(dense, tuple(stacks)))
    made.__dict__["_stacks"] = {}
    made.weights_dtype = dtype
    made = _without(made, [key for key in (*module._parameters, *module._buffers) if _is_of(key, stacks)], module)
    for name, (arrays, stack) in stacks.items():
        made._hold(name, arrays, stack)
    return made


def quantized_weights(model: nn.Module) -> dict[str, ExpertsWeight]:
    """Return the weights of all quantized experts of a model, by name.

    Examples
    --------
    >>> quantized_weights(nn.Linear(4, 4))
    {}
    """
    found = {path: module for path, module in model.named_modules() if isinstance(module, QuantizedExperts)}
    return {
        f"{path}.{name}".lstrip("."): ExpertsWeight(module, name)
        for path, module in found.items()
        for name in module.stacks
    }


def _is_of(key: str, names: Mapping[str, Any]) -> bool:
    """Is a parameter or buffer a part of one of these weights? Its bias isn't."""
    return key in names or any(key.startswith(f"{name}_") and key != f"{name}_bias" for name in names)


def _copied(module: nn.Module, kind: Any) -> Any:
    """Return an empty module of a class, with what users and transformers have set on another."""
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    ours = ("_sparse", "_together", "_lent", "_stacks", "_is_hf_initialized", "weights_dtype")
    made.__dict__.update({key: v for key, v in module.__dict__.items() if key not in _TORCHS and key not in ours})
    return made


def _without(made: Any, names: list[str], module: nn.Module) -> Any:
    """Give it all parameters, buffers and modules of another but those of these names; the same objects."""
    made._modules.update(module._modules)
    for own, other in ((made._parameters, module._parameters), (made._buffers, module._buffers)):
        own.update({key: tensor for key, tensor in other.items() if key not in names})
    made._non_persistent_buffers_set.update(module._non_persistent_buffers_set & set(made._buffers))
    return made


def _projected(experts: Any, name: str, x: Tensor, token: Tensor | None, own: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row by its expert: of the tokens with these numbers, or of x as it is."""
    arrays, stack = experts.arrays(name), experts._stacks[name]
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    x = read_columns(x, token, own, arrays.shared, stack.layout.m)
    bias = getattr(experts, f"{name}_bias") if experts.has_bias else None
    return experts_product(x, arrays, stack.layout, stack.shape, bias, ends)


def _weight(name: str) -> property:
    def read(self: Any) -> Tensor:
        stack = self._stacks[name]
        return decoded_stack(self.arrays(name), stack.layout, stack.shape, self.weights_dtype)

    return property(read, doc=f"The weight {name!r} as a dense tensor, [experts, outputs, inputs]; computed on access.")


@cache
def _class_of(dense: Any, names: tuple[str, ...]) -> type[QuantizedExperts]:
    members: dict[str, Any] = {name: _weight(name) for name in names}
    members |= {"_dense_class": dense, "__module__": dense.__module__, "__doc__": dense.__doc__}
    return type(f"Quantized{dense.__name__}", (QuantizedExperts, dense), members)


def _rebuild(dense: Any, names: tuple[str, ...]) -> QuantizedExperts:
    """Make an empty module for pickle and copy to fill."""
    made = _class_of(dense, names)
    return made.__new__(made)
