"""Every conversion by the interpreter: the same arrays as the levels' own ``pack``, without a C compiler."""

import itertools

import pytest
import torch

import gossamer as gs
from gossamer.compiler.convert import tensors
from gossamer.formats import Condensed, PackedCSR, PackedNM, Structure, as_format
from gossamer.formats.values import placed
from tests.compiler.convert.interpreted import interpreted

TWO = [
    gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.BSR((3, 2)), gs.BSR((2, 4), order=(1, 0)), gs.ELL(), gs.Masked(),
    gs.Format("compressed", "bitmap", order=(1, 0)), PackedCSR(), Condensed(), PackedCSR(7, order=(1, 0)),
]  # fmt: skip
THREE = [gs.CSF(), gs.COO(), gs.CSR(), gs.Masked(), gs.Format("compressed", "dense", "compressed", order=(2, 0, 1))]


def by_torch(x, format):
    """The nonzeros of a dense tensor, stored by the levels' own ``pack``."""
    keys = torch.nonzero(x.reshape(-1)).squeeze(1)
    structure, place = Structure.from_keys(as_format(format), keys, x.shape)
    return placed(x.reshape(-1)[keys], place, structure), structure


def same(made, want):
    (values, structure), (right, other) = made, want
    assert structure.format == other.format and torch.equal(values, right)
    for name, array in other.arrays.items():
        assert torch.equal(structure.arrays[name], array), name


def drawn(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.3)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(TWO, TWO)), ids=str)
def test_every_pair_of_matrices(source, target):
    x = drawn(19, 23)
    values, structure = by_torch(x, source)
    with interpreted():
        made = tensors.convert(values, structure, target)
        moved = tensors.convert(values.clone().requires_grad_(), structure, target)  # values are moved afterwards
        assert torch.equal(tensors.scatter(*made), x)
    if source.any_pattern:
        same(made, by_torch(x, target))
    same((moved[0].detach(), moved[1]), made)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(THREE, THREE)), ids=str)
def test_every_pair_of_three_dimensions(source, target):
    x = drawn(5, 7, 6)
    with interpreted():
        same(tensors.convert(*by_torch(x, source), target), by_torch(x, target))


@pytest.mark.parametrize("format", [*TWO, gs.CSF(), gs.Dense()], ids=str)
@pytest.mark.parametrize("shape", [(19, 70), (1, 1), (3, 64)])
def test_from_and_to_dense(format, shape):
    x = drawn(*shape)
    with interpreted():
        values, structure = tensors.from_dense(x, format)
        assert torch.equal(tensors.scatter(values, structure), x)
        assert torch.equal(tensors.gather(x, structure), values.view(structure.value_shape))
    same((values, structure), by_torch(x, format))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex128])
def test_any_type_of_value(dtype):
    x = drawn(9, 70).to(dtype) if dtype != torch.bool else drawn(9, 70) != 0
    with interpreted():
        made = tensors.from_dense(x, gs.CSR())
        same(made, by_torch(x, gs.CSR()))
        same(tensors.convert(*made, gs.ELL()), by_torch(x, gs.ELL()))


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((2, 3)), gs.ELL(), gs.Masked()], ids=str)
def test_entries_in_any_order(format):
    keys = torch.tensor([17, 3, 3, 29, 0, 17, 17])
    with interpreted():
        values, structure = tensors.from_entries(keys, torch.arange(1.0, 8.0), (5, 6), format)
        dense = tensors.scatter(values, structure)
    want = torch.zeros(30).index_add_(0, keys, torch.arange(1.0, 8.0)).view(5, 6)
    assert torch.equal(dense, want)
    same((values, structure), by_torch(want, format))


def test_packed_n_of_m_is_stored_in_half_bytes():
    x = gs.sparsify(torch.randn(37, 50), gs.NM(2, 4), format=gs.Dense())
    with interpreted():
        made = tensors.from_dense(x, PackedNM(2, 4))
        same(tensors.convert(*made, gs.CSC()), by_torch(x, gs.CSC()))
    same(made, by_torch(x, PackedNM(2, 4)))
