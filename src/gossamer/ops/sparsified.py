"""gs.sparsified_op: an operator with sparse outputs and sparse gradients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core.decide import kinds_of
from gossamer.core.facts import POINTWISE
from gossamer.core.join import entries_of, from_entries
from gossamer.core.table import inline_entry, operator_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, as_format
from gossamer.ops.sparsify import apply_mask, sparsify
from gossamer.patterns import KeepAll
from gossamer.sparsifiers import Sparsifier, as_sparsifier

_CHUNK = 2**18  # values of an output that an inline sparsifier sees at a time


class Output(NamedTuple):
    """How one output, or its gradient, is made sparse: STen's four settings.

    Examples
    --------
    >>> import gossamer as gs
    >>> gs.Output.of((None, None, "90%", gs.CSR())).out_format
    CSR()
    """

    inline: Sparsifier  # applied by the operator as it computes
    temp_format: Format  # what that leaves
    external: Sparsifier  # applied to it afterwards
    out_format: Format  # what comes out

    @classmethod
    def of(cls, spec: Any) -> Output:
        """From a tuple of four; None means keep-all or dense."""
        if isinstance(spec, Output):
            return spec
        if not isinstance(spec, (tuple, list)) or len(spec) != 4:
            raise ValueError(
                f"an output is (inline sparsifier, temporary format, external sparsifier, output format), not {spec!r}"
            )
        inline, temp, external, out = spec
        temp, out = (Dense() if f is None else as_format(f) for f in (temp, out))
        sparsifiers = (as_sparsifier(KeepAll() if s is None else s) for s in (inline, external))
        return cls(next(sparsifiers), temp, next(sparsifiers), out)

    def apply(self, x: Tensor) -> Tensor:
        """Take a finished tensor through all four steps."""
        return self.finish(_keep(x, self.inline, self.temp_format))

    def finish(self, x: Tensor) -> Tensor:
        """Take what the inline sparsifier left through the last two steps."""
        return _keep(x, self.external, self.out_format)


def _keep(x: Tensor, sparsifier: Sparsifier, format: Format) -> Tensor:
    """Sparsify into a format; keep-all of a dense tensor into Dense is the tensor itself."""
    if isinstance(sparsifier.pattern, KeepAll):
        if isinstance(x, SparseTensor):
            return x.to_format(format)
        if isinstance(format, Dense):
            return x
    return sparsify(x, sparsifier, format)


def sparsified_op(
    orig_op: Callable[..., Any], out_fmt: Sequence[Any], grad_out_fmt: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """Return an operator like ``orig_op`` whose outputs are sparse, in the given formats.

    Parameters
    ----------
    orig_op
        Any torch callable; its inputs may be dense or sparse.
    out_fmt
        For each output ``(inline sparsifier, temporary format, external sparsifier, output format)``. The inline
        sparsifier is applied while the operator computes. A streaming or blocking one works on one piece of the output
        at a time, so products and pointwise operators never have the full dense output in memory. The external one is
        applied afterwards. None means keep-all or dense.
    grad_out_fmt
        The same four for the gradient of each output.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> sparse_add = gs.sparsified_op(
    ...     orig_op=torch.add,
    ...     out_fmt=[(gs.sparsifiers.ScalarThreshold(1.0), gs.COO(), "50%", gs.CSR())],
    ...     grad_out_fmt=[(None, None, "90%", gs.COO())],
    ... )
    >>> a = torch.randn(10, 10, requires_grad=True)
    >>> sparse_add(a, a).format
    CSR()
    """
    outputs = [Output.of(spec) for spec in out_fmt]
    grads = [Output.of(spec) for spec in (grad_out_fmt or [])]
    if grads and len(grads) != len(outputs):
        raise ValueError(f"grad_out_fmt has {len(grads)} entries, out_fmt has {len(outputs)}; give one for each output")

    def run(*args: Any, **kwargs: Any) -> Any:
        if len(outputs) == 1:
            result = outputs[0].finish(_inline(orig_op, outputs[0], args, kwargs))
            return with_gradient(result, grads[0]) if grads else result
        results = orig_op(*args, **kwargs)
        if not isinstance(results, (tuple, list)) or len(results) != len(outputs):
            raise ValueError(f"out_fmt has {len(outputs)} entries, but {_name(orig_op)} does not give as many outputs")
        done = [spec.apply(r) for spec, r in zip(outputs, results, strict=True)]
        return tuple(with_gradient(r, g) for r, g in zip(done, grads, strict=True)) if grads else tuple(done)

    run.__name__ = run.__qualname__ = f"sparsified_{_name(orig_op)}"
    run.__doc__ = f"{_name(orig_op)} with outputs as {out_fmt}"
    return run


def with_gradient(x: Tensor, spec: Output) -> Tensor:
    """Convert the gradient of a tensor to a format."""
    if isinstance(x, Tensor) and x.requires_grad:
        x.register_hook(spec.apply)
    return x


def _inline(op: Callable[..., Any], spec: Output, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Compute the operator and its inline sparsifier together, in pieces where both allow it."""
    name, sparsifier = operator_of(op).name, spec.inline
    entry = inline_entry(name, kinds_of(args), sparsifier)
    if entry is not None:
        return entry.function(*args, sparsifier=sparsifier, **kwargs)
    if isinstance(sparsifier.pattern, KeepAll) or sparsifier.kind == "materializing":
        return _keep(op(*args, **kwargs), sparsifier, spec.temp_format)
    pieces = _pieces(name, op, args, kwargs)
    if pieces is None or isinstance(spec.temp_format, Dense):
        return _keep(op(*args, **kwargs), sparsifier, spec.temp_format)
    keys, values, rows, tail = [], [], 0, torch.Size()
    for piece, mask in sparsifier.stream(pieces):
        tail = piece.shape[1:]
        found, kept = entries_of(apply_mask(piece, mask, _COO))  # type: ignore[arg-type]
        keys.append(found + rows * tail.numel())
        values.append(kept)
        rows += piece.shape[0]
    return from_entries(torch.cat(keys), torch.cat(values), (rows, *tail), spec.temp_format)


_COO = as_format("COO")


def _pieces(
    name: str, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Tensor] | None:
    """Rows of the output a piece at a time, for operators whose output rows depend on the same rows of their inputs."""
    dense = [a for a in args if isinstance(a, Tensor) and not isinstance(a, SparseTensor)]
    if not dense or dense[0] is not args[0] or dense[0].dim() < 2 or dense[0].shape[0] == 0:
        return None
    if name in ("linear", "matmul", "mm"):
        cut = [0]
        width = args[1].shape[0 if name == "linear" else -1] * dense[0].shape[1:-1].numel()
        if name != "linear" and args[1].dim() != 2:
            return None
    elif name in POINTWISE and all(isinstance(a, (int, float)) or _same_rows(a, args[0]) for a in args):
        cut = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        width = dense[0].shape[1:].numel()
    else:
        return None
    rows = max(1, _CHUNK // max(width, 1))

    def pieces() -> Iterator[Tensor]:
        for start in range(0, dense[0].shape[0], rows):
            yield op(*(a[start : start + rows] if i in cut else a for i, a in enumerate(args)), **kwargs)

    return pieces()


def _same_rows(value: Any, first: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == first.shape


def _name(op: Callable[..., Any]) -> str:
    return getattr(op, "__name__", str(op))
