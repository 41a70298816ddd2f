"""Round trips: every format, every dtype, whole models; and what save and load refuse."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import gossamer as gs
from gossamer.formats.packed import EarlierNM, PackedNM
from tests.formats_under_test import ALL
from tests.io.forge import signed

PACKED = [
    gs.formats.PackedCSR(),
    gs.formats.PackedCSR(64),
    gs.formats.Condensed(),
    gs.formats.PackedNM(2, 4),
    gs.formats.PackedGroupedNM(1, 4, 2),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def same_tensor(a: torch.Tensor, b: torch.Tensor) -> None:
    assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
    if isinstance(a, gs.SparseTensor):
        assert a.format == b.format
        for name, array in a.structure.arrays.items():
            assert torch.equal(array, b.structure.arrays[name])
        a, b = a._values, b._values
    assert torch.equal(a, b)


def model(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))


@pytest.mark.parametrize("format", [*ALL, *PACKED], ids=str)
def test_every_format(format: gs.Format, path: Path) -> None:
    dense = torch.zeros(16, 24)
    dense[:, ::8] = torch.rand(16, 3) + 1
    tensor = gs.from_dense(dense, format)
    gs.save({"w": tensor}, path)
    with gs.io.File(path) as file:
        same_tensor(file["w"], tensor)
    (row,) = gs.io.inspect(path)
    assert (row.name, row.shape, row.format) == ("w", (16, 24), repr(tensor.format))
    assert (row.sparsity, row.bytes, row.dense_bytes) == (tensor.sparsity, tensor.nbytes, 16 * 24 * 4)


@pytest.mark.parametrize("dtype", gs.io.container.NAMES, ids=str)
def test_every_dtype(dtype: torch.dtype, path: Path) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    gs.save({"w": tensor}, path)
    with gs.io.File(path) as file:
        assert file["w"].dtype == dtype
        assert torch.equal(file["w"].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_half_and_double_sparse(dtype: torch.dtype, path: Path) -> None:
    one = gs.sparsify_(model().to(dtype), "50%", format=gs.CSR())
    gs.save(one, path)
    other = gs.load(model().to(dtype), path)
    same_tensor(other[0].weight.detach(), one[0].weight.detach())
    assert other[0].weight.dtype == dtype


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (3,), (2, 3, 4)])
def test_odd_shapes(shape: tuple[int, ...], path: Path) -> None:
    state = {"dense": torch.rand(shape), "sparse": gs.from_dense(torch.ones(shape), gs.COO()), "one": torch.tensor(3.0)}
    gs.save(state, path)
    with gs.io.File(path) as file:
        assert list(file) == list(state) and len(file) == 3
        for name, tensor in state.items():
            same_tensor(file[name], tensor)


def test_model_with_buffers(path: Path) -> None:
    one = gs.sparsify_(model(), {"0": "75%", "3": "2:4"}, format=gs.formats.PackedCSR())
    one(torch.randn(32, 16))  # batch norm learns
    gs.save(one, path)
    other = model()
    weight, bias = other[0].weight, other[0].bias
    assert gs.load(other, path) is other
    assert other[0].weight_values is weight and other[0].bias is bias  # an optimizer that holds them goes on
    x = torch.randn(5, 16)
    assert torch.equal(other.eval()(x), one.eval()(x))
    assert int(other[1].num_batches_tracked) == 1


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        if tie:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("meta", [True, False])
def test_tied(tie: bool, meta: bool, path: Path) -> None:
    one = gs.sparsify_(Tied(), "50%", where="head", format=gs.CSR())
    assert one.embed.weight_values is one.head.weight_values
    gs.save(one, path)
    assert len(safetensors.torch.load_file(path)) == 3  # the arrays of one tensor
    with torch.device("meta" if meta else "cpu"):
        other = Tied(tie)
    gs.load(other, path)
    assert (other.embed.weight_values is other.head.weight_values) == tie
    for weight in (other.embed.weight, other.head.weight):
        same_tensor(weight.detach(), one.embed.weight.detach())
    assert [(r.name, r.tied_to) for r in gs.io.inspect(path)] == [
        ("embed.weight", None),
        ("head.weight", "embed.weight"),
    ]


@pytest.mark.parametrize("densified", [True, False])
def test_a_tied_masked_weight_is_saved_once(densified: bool, path: Path) -> None:
    one = gs.sparsify_(Tied(), "50%", where="head")
    gs.save(one, path)
    assert [(r.name, r.tied_to) for r in gs.io.inspect(path)] == [
        ("embed.weight", None),
        ("head.weight", "embed.weight"),
    ]
    other = gs.densify_(copy.deepcopy(one)) if densified else Tied()
    gs.load(other, path)
    assert other.embed.weight is other.head.weight and other.embed.weight.sparsity == 0.5
    assert torch.equal(other.embed.weight.mask(), one.embed.weight.mask())


def test_a_tied_masked_weight_that_an_older_version_saved_twice(path: Path) -> None:
    one = gs.sparsify_(Tied(), "50%", where="head")
    masked = gs.from_dense(one.embed.weight.detach(), gs.Masked())
    gs.save({"embed.weight": masked, "head.weight": masked.to_dense()}, path)
    other = gs.load(Tied(), path)
    assert other.embed.weight is other.head.weight and torch.equal(other.head.weight.detach(), masked.to_dense())


def test_untied_values_for_a_tied_model(path: Path) -> None:
    gs.save(Tied(tie=False), path)
    with pytest.raises(ValueError, match=r"ties 'embed.weight' and 'head.weight', and the file holds two different"):
        gs.load(Tied(), path)


def test_dense_export_is_a_plain_file(path: Path) -> None:
    one = gs.sparsify_(model(), "75%", format=gs.formats.PackedCSR()).eval()
    gs.save(one, path, dense=True)
    other = model().eval()
    other.load_state_dict(safetensors.torch.load_file(path))  # a program that knows nothing of gossamer
    torch.testing.assert_close(other(torch.ones(2, 16)), one(torch.ones(2, 16)))
    assert type(gs.load(model(), path)[0].weight) is nn.Parameter


def test_safetensors_reads_every_array(path: Path) -> None:
    tensor = gs.from_dense(torch.eye(5), gs.CSR())
    gs.save({"w": tensor, "b": torch.arange(3, dtype=torch.uint8)}, path)
    plain = safetensors.torch.load_file(path)
    assert torch.equal(plain["w:values"], tensor._values) and torch.equal(
        plain["w:pos1"], tensor.structure.arrays["pos1"]
    )
    with safetensors.safe_open(path, "pt") as file:
        page = json.loads(file.metadata()["gossamer"])
    assert page["version"] == 2
    assert page["tensors"] == {"w": {"format": "CSR()", "shape": [5, 5], "parts": ["values", "pos1", "crd1"]}}


def test_tensors_are_aligned(path: Path) -> None:
    gs.save({"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(5, dtype=torch.float64)}, path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0 and header["b"]["data_offsets"][0] % 8 == 0


@pytest.mark.parametrize(("n", "m", "order"), [(2, 4, None), (1, 10, None), (2, 4, (1, 0))])
def test_files_of_version_1_are_read(path: Path, n: int, m: int, order: tuple[int, int] | None) -> None:
    """They have a byte for each column of n:m; the same tensor comes back with half of one."""
    dense = gs.sparsify(torch.randn(40, 40), gs.NM(n, m), format=gs.Dense())
    dense = dense if order is None else dense.T.contiguous()
    now, then = (gs.from_dense(dense, kind(n, m, order=order)) for kind in (PackedNM, EarlierNM))
    arrays = {"values": then._values, **then.structure.arrays}
    assert arrays["crd3"].numel() == then._values.numel()
    path.write_bytes(signed("w", repr(now.format), dense.shape, arrays, version=1))
    with gs.io.File(path) as file:
        for _ in range(2):  # the second time it is known
            found = file["w"]
            assert found.format == now.format and torch.equal(found._values, now._values)
            assert torch.equal(found.structure.arrays["crd3"], now.structure.arrays["crd3"])


def test_a_mask_that_changes_while_it_is_saved_gives_a_file_that_loads(path: Path) -> None:
    """Another thread trains: the values that are copied may be of an earlier mask than the mask is."""
    tensor = gs.sparsify(torch.randn(8, 8), "50%", gs.Masked())
    other = gs.sparsify(torch.randn(8, 8), "50%", gs.Masked())
    gs.save({"w": gs.SparseTensor(tensor.values(), other.structure)}, path)
    with gs.io.File(path) as file:
        assert torch.equal(file["w"].to_dense(), tensor.to_dense() * other.mask())
