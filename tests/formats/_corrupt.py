"""Corruptions: a whole tensor in a format, and ways to break it. Whether it really is broken, _reference says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import gossamer as gs
from tests.formats._reference import SPECS, Spec

EXTREMES = (2**31 - 1, -(2**31), 2**31 - 2, 2**30)
EXTREMES_64 = (2**63 - 1, -(2**63), 2**62, 2**32, 2**31, -(2**31) - 1)
SIZES = (0, 1, 1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Case:
    """What ``SparseTensor.from_arrays`` takes."""

    spec: Spec
    shape: Any
    values: Any
    arrays: Any

    def build(self) -> gs.SparseTensor:
        return gs.SparseTensor.from_arrays(self.spec.format, self.shape, self.values, self.arrays)

    def swap(self, name: str, array: Any) -> Case:
        return replace(self, arrays={**self.arrays, name: array})


def whole(rng: random.Random, name: str, ndim: int | None = None) -> Case:
    """Return a random tensor of a format, whole."""
    spec = SPECS[name]
    ndim = ndim or rng.choice((1, 2, 2, 2, 3, 4))
    shape = tuple(rng.choice(SIZES) for _ in range(ndim if spec.width is None else min(ndim, 2)))
    dense = torch.empty(shape).uniform_(0.5, 1.5) * (torch.rand(shape) < rng.choice((0.1, 0.4, 0.8)))
    tensor = gs.from_dense(dense, spec.format)
    arrays = dict(tensor.structure.arrays)
    if rng.random() < 0.5:
        arrays = {k: a if a.dtype == torch.bool else a.long() for k, a in arrays.items()}
    return Case(spec, shape, tensor._values.clone(), arrays)


Kind = Callable[[random.Random, Case], Case | None]  # None: this tensor has nothing to break in this way
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def _pick(rng: random.Random, case: Case, start: str = "") -> tuple[str, torch.Tensor] | None:
    found = [(k, a) for k, a in case.arrays.items() if k.startswith(start) and a.numel()]
    return rng.choice(found) if found else None


def _write(rng: random.Random, case: Case, start: str, value: Callable[[torch.Tensor, int], int]) -> Case | None:
    """Write a number, made from the array and a place, at a random place of an index array."""
    found = _pick(rng, case, start)
    if found is None:
        return None
    name, array = found
    array = array.clone()
    flat, i = array.view(-1), rng.randrange(array.numel())
    number = int(value(flat, i))
    if array.dtype == torch.int32:
        number = max(min(number, 2**31 - 1), -(2**31))
    flat[i] = number
    return case.swap(name, array)


@kind
def index_too_large(rng: random.Random, case: Case) -> Case | None:
    return _write(rng, case, "crd", lambda a, i: max([*case.shape, 1]) + rng.choice((0, 1, 7, 1000)))


@kind
def index_negative(rng: random.Random, case: Case) -> Case | None:
    return _write(rng, case, "crd", lambda a, i: -rng.choice((1, 2, 100)))


@kind
def index_moved(rng: random.Random, case: Case) -> Case | None:
    return _write(rng, case, "crd", lambda a, i: int(a[i]) + rng.choice((-2, -1, 1, 2)))


@kind
def indices_exchanged(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case, "crd")
    if found is None:
        return None
    order = list(range(found[1].numel()))
    rng.shuffle(order)
    shuffled = found[1].reshape(-1)[torch.tensor(order)]
    return case.swap(found[0], shuffled.view(found[1].shape))


@kind
def index_twice(rng: random.Random, case: Case) -> Case | None:
    return _write(rng, case, "crd", lambda a, i: int(a[i - 1]))


@kind
def entry_twice(rng: random.Random, case: Case) -> Case | None:
    """Repeat an entry in all index arrays."""
    places = min((a.numel() for k, a in case.arrays.items() if k.startswith("crd") and a.dim() == 1), default=0)
    if places < 2:
        return None
    i, arrays = rng.randrange(1, places), {k: a.clone() for k, a in case.arrays.items()}
    for name, array in arrays.items():
        if name.startswith("crd") and array.dim() == 1:
            array[i] = array[i - 1]
    return replace(case, arrays=arrays)


@kind
def pointer_moved(rng: random.Random, case: Case) -> Case | None:
    return _write(rng, case, "pos", lambda a, i: int(a[i]) + rng.choice((-3, -1, 1, 3)))


@kind
def pointers_start_wrong(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case, "pos")
    if found is None:
        return None
    array = found[1].clone()
    array[0] = rng.choice((1, -1, 2, 2**31 - 1))
    return case.swap(found[0], array)


@kind
def pointers_end_wrong(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case, "pos")
    if found is None:
        return None
    array = found[1].clone()
    array[-1] = int(array[-1]) + rng.choice((-1, 1, 5, 2**30))
    return case.swap(found[0], array)


@kind
def pointers_backwards(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case, "pos")
    return None if found is None else case.swap(found[0], found[1].flip(0))


@kind
def wrong_length(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case)
    if found is None:
        return None
    name, array = found
    if rng.random() < 0.5:
        return case.swap(name, array[: -rng.randint(1, len(array))])
    return case.swap(name, torch.cat([array, array[-1:].repeat(rng.randint(1, 3), *(1,) * (array.dim() - 1))]))


@kind
def wider_or_narrower(rng: random.Random, case: Case) -> Case | None:
    """Another column of places, or one less, with as many values."""
    found = [(k, a) for k, a in case.arrays.items() if a.dim() == 2 and a.shape[1]]
    if not found:
        return None
    name, crd = found[0]
    values = case.values.view(*crd.shape, *case.values.shape[1:])
    if rng.random() < 0.5:
        crd, values = crd[:, :-1], values[:, :-1]
    else:
        crd, values = torch.cat([crd, crd[:, -1:] * 0 - 1], 1), torch.cat([values, values[:, -1:] * 0], 1)
    return replace(case.swap(name, crd.contiguous()), values=values.flatten(0, 1))


@kind
def emptied(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case)
    return None if found is None else case.swap(found[0], found[1].new_empty(rng.choice([(0,), (0, 0), (0, 3)])))


@kind
def wrong_type(rng: random.Random, case: Case) -> Case | None:
    types = (
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.bool,
        torch.complex64,
        torch.int32,
    )
    names = list(case.arrays)
    if not names:
        return None
    name = rng.choice(names)
    return case.swap(name, case.arrays[name].to(rng.choice(types)))


@kind
def mixed_types(rng: random.Random, case: Case) -> Case | None:
    names = [k for k, a in case.arrays.items() if a.dtype != torch.bool]
    if not names:
        return None
    name = rng.choice(names)
    return case.swap(name, case.arrays[name].to(torch.int64 if case.arrays[name].dtype == torch.int32 else torch.int32))


@kind
def wrong_dimensions(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case)
    if found is None:
        return None
    changes = (
        lambda a: a.unsqueeze(0), lambda a: a.unsqueeze(-1), lambda a: a.reshape(-1)[0], lambda a: a[None, None],
        lambda a: a.reshape(-1) if a.dim() > 1 else a[:, None],
    )  # fmt: skip
    return case.swap(found[0], rng.choice(changes)(found[1]))


@kind
def other_names(rng: random.Random, case: Case) -> Case | None:
    names = list(case.arrays)
    choice = rng.randrange(4)
    if choice == 0 or not names:
        return case.swap(rng.choice(("crd9", "", "pos", 7, None)), torch.zeros(1, dtype=torch.int32))
    name = rng.choice(names)
    rest = {k: a for k, a in case.arrays.items() if k != name}
    if choice == 1:
        return replace(case, arrays=rest)
    if choice == 2:
        return replace(case, arrays={**rest, f"{name}0": case.arrays[name]})
    return replace(case, arrays=rng.choice(([], None, tuple(case.arrays.values()), "arrays", rest.items())))


@kind
def values_too_many_or_few(rng: random.Random, case: Case) -> Case | None:
    if case.values.dim() and rng.random() < 0.5 and len(case.values):
        return replace(case, values=case.values[:-1])
    return replace(case, values=torch.ones(len(case.values) + rng.randint(1, 3), *case.values.shape[1:]))


@kind
def values_of_other_shape(rng: random.Random, case: Case) -> Case | None:
    v = case.values
    return replace(case, values=rng.choice((v[None], v[..., None], v.reshape(-1), v.sum(), v.transpose(0, -1), v[:0])))


@kind
def padding_not_zero(rng: random.Random, case: Case) -> Case | None:
    flat = case.values.clone().reshape(-1)
    zeros = [i for i, v in enumerate(flat.tolist()) if v == 0]
    if not zeros:
        return None
    flat[rng.choice(zeros)] = rng.choice((1.0, -1e-30, float("nan"), float("inf")))
    return replace(case, values=flat.view(case.values.shape))


@kind
def mask_bit_flipped(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case, "mask")
    if found is None:
        return None
    array = found[1].clone()
    array[rng.randrange(array.numel())] ^= True
    return case.swap(found[0], array)


@kind
def overflow(rng: random.Random, case: Case) -> Case | None:
    start = rng.choice(("pos", "crd", "crd"))
    return _write(rng, case, start, lambda a, i: rng.choice(EXTREMES + (EXTREMES_64 if a.dtype == torch.int64 else ())))


@kind
def bit_flipped(rng: random.Random, case: Case) -> Case | None:
    start = rng.choice(("pos", "crd", "crd"))
    return _write(rng, case, start, lambda a, i: int(a[i]) ^ (1 << rng.randrange(31 if a.dtype == torch.int32 else 63)))


@kind
def random_numbers(rng: random.Random, case: Case) -> Case | None:
    found = _pick(rng, case, rng.choice(("pos", "crd")))
    if found is None:
        return None
    return case.swap(found[0], torch.randint_like(found[1], -1, max([*case.shape, 2]) + 1))


@kind
def shape_changed(rng: random.Random, case: Case) -> Case | None:
    shape = list(case.shape)
    i = rng.randrange(len(shape))
    choice = rng.randrange(5)
    if choice == 0:
        shape[i] += rng.choice((-1, 1, 2))
    elif choice == 1:
        del shape[i]
    elif choice == 2:
        shape.insert(i, rng.choice((0, 1, 2)))
    elif choice == 3:
        rng.shuffle(shape)
    else:
        shape[i] //= 2
    return replace(case, shape=tuple(shape))


@kind
def shape_negative(rng: random.Random, case: Case) -> Case | None:
    shape = list(case.shape)
    shape[rng.randrange(len(shape))] = rng.choice((-1, -5, -(2**31), -(2**63), -(2**80)))
    return replace(case, shape=tuple(shape))


@kind
def shape_overflows(rng: random.Random, case: Case) -> Case | None:
    big = rng.choice((2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, 10**5000))
    shape = [big if rng.random() < 0.7 else s for s in case.shape]
    return replace(case, shape=tuple(shape))


@kind
def shape_of_other_things(rng: random.Random, case: Case) -> Case | None:
    shape = list(case.shape)
    shape[rng.randrange(len(shape))] = rng.choice((1.0, 2.5, "2", None, (2,), float("nan"), b"3", 1j))
    return replace(case, shape=rng.choice((tuple(shape), tuple(shape), 5, None, 2.5)))


@kind
def other_device(rng: random.Random, case: Case) -> Case | None:
    where = rng.choice((*case.arrays, "values", "all"))
    values = case.values.to("meta") if where in ("values", "all") else case.values
    return replace(
        case, values=values, arrays={k: a.to("meta") if where in (k, "all") else a for k, a in case.arrays.items()}
    )


@kind
def not_a_tensor(rng: random.Random, case: Case) -> Case | None:
    def other(a: torch.Tensor) -> Any:
        sparse = gs.from_dense(torch.eye(2), gs.CSR())
        return rng.choice((a.tolist(), None, a.numpy(), 3, "crd", a.to_sparse() if a.dim() else None, sparse))

    where = rng.choice((*case.arrays, "values"))
    return (
        replace(case, values=other(case.values)) if where == "values" else case.swap(where, other(case.arrays[where]))
    )


@kind
def expanded(rng: random.Random, case: Case) -> Case | None:
    """A single number said to be an array of trillions."""
    big = rng.choice((3, 100, 2**40))
    found = _pick(rng, case)
    if found is None or rng.random() < 0.3:
        return replace(case, values=torch.ones(1).expand(big, *case.values.shape[1:]))
    case = case.swap(found[0], found[1].reshape(-1)[:1].expand(big, *found[1].shape[1:]))
    return replace(case, shape=(big,) * len(case.shape)) if rng.random() < 0.3 else case


@kind
def arrays_of_another(rng: random.Random, case: Case) -> Case | None:
    """The arrays of one tensor with the shape or the values of another, in any format."""
    other = whole(rng, rng.choice(list(SPECS)), len(case.shape))
    return replace(case, **rng.choice(({"arrays": other.arrays}, {"values": other.values}, {"shape": other.shape})))


@kind
def twice_broken(rng: random.Random, case: Case) -> Case | None:
    """Two other corruptions at once: one must not hide the other."""
    alone = ("twice broken", "not a tensor", "other names", "shape of other things", "expanded")
    names = [name for name in KINDS if name not in alone]
    for name in rng.sample(names, 2):
        try:
            case = KINDS[name](rng, case) or case
        except (
            RuntimeError,
            IndexError,
            ValueError,
            TypeError,
            UserWarning,
        ):  # what the first made, the second can't change
            continue
    return case
