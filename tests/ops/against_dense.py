"""Functions of sparse tensors, judged by the same functions of dense ones: values, type, shape and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.core.join import build, from_entries
from gossamer.core.tensor import SparseTensor
from gossamer.formats.values import placed

#: Odd sizes, one row, one column, nothing at all, and one, two and three dimensions.
SHAPES = [(5, 7), (1, 6), (6, 1), (0, 4), (4, 0), (9,), (3, 4, 5)]
MATRICES = [s for s in SHAPES if len(s) == 2]


def sample(shape: tuple[int, ...], format: gs.Format, *, density: float = 0.5, seed: int = 0) -> SparseTensor:
    """Return a float64 tensor with about half of its entries, and nothing in its first row."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(shape, dtype=torch.float64, generator=generator)
    keep = torch.rand(shape, generator=generator) < density
    if len(shape) > 1 and shape[0] > 1:
        keep[0] = False
    pattern = gs.from_dense(keep.double(), format)  # in a blocked format, whole blocks
    keys = torch.nonzero(pattern.mask().reshape(-1)).squeeze(1)
    return from_entries(keys, dense.reshape(-1)[keys], shape, format)


def dense_of(x: Any) -> Any:
    return x.to_dense() if isinstance(x, SparseTensor) else x


def check(f: Callable[..., Any], *args: Any, native: bool = True, gradients: bool = True) -> Any:
    """Compare f(sparse) with f(dense), and its gradients by gradcheck; it must not fall back unless it may."""
    with gs.fallback("error" if native else "silent"):
        out = f(*args)
    expected = f(*(dense_of(a) for a in args))
    assert out.shape == expected.shape
    assert out.dtype == expected.dtype
    torch.testing.assert_close(dense_of(out), expected, equal_nan=True)
    if gradients:
        check_gradients(f, *args)
        check_gradients_against_dense(f, *args)
    return out


def check_refused(f: Callable[..., Any], words: str, t: SparseTensor) -> None:
    """A call that no function takes gives torch's result or error, and the warning has the guard's reason."""
    try:
        expected = f(t.to_dense())
    except (RuntimeError, IndexError) as error:
        expected = error
    seen: list[str] = []

    def note(decision: Any) -> None:
        seen.append(decision.reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gossamer.core.fallback.announce", note)
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                f(t)
        else:
            got = f(t)
            pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
            assert all(torch.equal(dense_of(ours), theirs) for ours, theirs in pairs)
    assert any(words in reason for reason in seen), seen


def check_gradients(f: Callable[..., Any], *args: Any) -> None:
    """torch's gradcheck, by the stored entries of sparse arguments and all entries of dense ones."""
    sparse = [i for i, a in enumerate(args) if isinstance(a, SparseTensor)]
    leaves = [_entries(a) if isinstance(a, SparseTensor) else a for a in args]
    leaves = [x.detach().clone().requires_grad_() if _is_float(x) else x for x in leaves]

    def g(*leaves: Any) -> Tensor:
        whole = [_with_entries(args[i], x) if i in sparse else x for i, x in enumerate(leaves)]
        with gs.fallback("silent"):
            return dense_of(f(*whole))

    assert torch.autograd.gradcheck(g, tuple(leaves), fast_mode=True)


def check_gradients_against_dense(f: Callable[..., Any], *args: Any) -> None:
    """The gradient of a sparse argument is the dense gradient at its stored positions, in its own pattern."""
    sparse = [a.detach().clone().requires_grad_() if _is_float(a) else a for a in args]
    dense = [dense_of(a).detach().clone().requires_grad_() if _is_float(a) else a for a in args]
    with gs.fallback("silent"):
        out, expected = dense_of(f(*sparse)), f(*dense)
        weight = torch.linspace(-1, 2, expected.numel(), dtype=expected.dtype).view(expected.shape)
        (out * weight).sum().backward()
        (expected * weight).sum().backward()
    for s, d in zip(sparse, dense, strict=True):
        if isinstance(s, SparseTensor):
            assert s.grad.structure.same(s.structure)
            torch.testing.assert_close(s.grad.to_dense(), torch.where(s.mask(), d.grad, 0))
        elif _is_float(s):
            torch.testing.assert_close(torch.zeros_like(d.grad) if s.grad is None else s.grad, d.grad)


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _entries(t: SparseTensor) -> Tensor:
    where = t.structure.entries().where
    values = t.values().detach().reshape(-1)
    return values if where is None else values[where]


def _with_entries(t: SparseTensor, entries: Tensor) -> SparseTensor:
    return build(placed(entries, t.structure.entries().where, t.structure), t.structure)
