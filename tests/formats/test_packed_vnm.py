"""Packed V:N:M: exact there and back, in the order of the registers, small, and no broken promise gets in."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

import gossamer as gs
from gossamer.formats import PackedNM, PackedVNM, as_format

VS = [1, 3, 16, 64, "all"]


def pruned(rows, cols, v, m, dtype=torch.float32):
    return gs.sparsify(torch.randn(rows, cols).to(dtype), gs.VNM(v, 2, m), format=gs.Dense())


@settings(max_examples=80)
@given(
    rows=st.integers(0, 140),
    cols=st.integers(0, 600),
    v=st.sampled_from(VS),
    m=st.sampled_from([4, 5, 8, 16, 100, 256]),
    thin=st.booleans(),
    seed=st.integers(0, 99),
)
def test_there_and_back(rows, cols, v, m, thin, seed):
    torch.manual_seed(seed)
    dense = pruned(rows, cols, v, m) if rows * cols else torch.zeros(rows, cols)
    if thin:  # rows that keep 0, 1 or 2 of a group
        dense = dense * (torch.rand(rows, cols) < 0.5)
    packed = gs.from_dense(dense, PackedVNM(v, 2, m))
    assert torch.equal(packed.to_dense(), dense)
    assert bool(packed.mask()[dense != 0].all())
    packed.structure.check(packed._values)
    again = gs.SparseTensor.from_arrays(packed.format, dense.shape, packed.values(), packed.structure.arrays)
    assert torch.equal(again.to_dense(), dense)


def by_the_book(values, meta, cols, rows, width, v, m):
    """Decode one word after the other, as gpu kernels do: thread 4 g + t of a strip holds eight values a k32 step."""
    steps = -(-width // (16 * m))
    tiles = -(-rows // 64)
    values, meta = values.view(steps, tiles, 4, 2, 32, 8), meta.view(steps, tiles, 4, 32)
    dense = torch.zeros(tiles * 64, steps * 16 * m, dtype=values.dtype)
    for r in range(tiles):
        for s in range(steps):
            for strip in range(4):
                for half in range(2):
                    for row in range(16):
                        g, high = row % 8, row // 8
                        for group in range(8):
                            word = int(meta[s, r, strip, 4 * g + 2 * half + group // 4])
                            bits = word >> (16 * high + 4 * (group % 4)) & 15
                            number = 64 * r + 16 * strip + row
                            at = 16 * s + 8 * half + group
                            for slot, index in enumerate((bits & 3, bits >> 2)):
                                column = 2 * group + slot  # stored column of the k32 step
                                lane, upper = column % 8 // 2, column // 8
                                value = values[s, r, strip, half, 4 * g + lane, 4 * upper + 2 * high + slot]
                                block = 0 if v == "all" else number // v
                                place = index if m == 4 else int(cols[block, at, index])
                                dense[number, at * m + place] += value
    return dense[:rows, :width]


@pytest.mark.parametrize(("v", "m"), [("all", 4), (16, 8), (3, 5), ("all", 12)])
def test_the_order_is_that_of_the_registers(v, m):
    dense = pruned(70, 17 * m + 2, v, m)
    packed = gs.from_dense(dense, PackedVNM(v, 2, m))
    arrays = packed.structure.arrays
    out = by_the_book(packed.values(), arrays["meta1"], arrays["cols1"], *dense.shape, v, m)
    assert torch.equal(out, dense)


def test_by_hand():
    """Row 9 (high = 1, low = 1) of group 5 (upper = 1, lane = 1): thread 5 of strip 0, elements 6 and 7."""
    dense = torch.zeros(16, 64)
    dense[9, 20 + 1], dense[9, 20 + 3] = 5.0, 7.0
    packed = gs.from_dense(dense, PackedVNM("all", 2, 4))
    values = packed.values().view(1, 1, 4, 2, 32, 8)
    assert values[0, 0, 0, 0, 5, 6:].tolist() == [5, 7] and int((values != 0).sum()) == 2
    word = int(packed.structure.arrays["meta1"].view(4, 32)[0, 4 * 1 + 1]) & 0xFFFFFFFF
    assert word >> 16 == 0x44D4 and word & 0xFFFF == 0x4444  # 01, 11 in the second group from below; 00, 01 elsewhere


@pytest.mark.parametrize("v", [64, 128, "all"])
@pytest.mark.parametrize("m", [4, 8, 16, 32])
def test_bytes(v, m):
    """At most (2/m)(1.125 + 2/v) of dense; nothing is padded here."""
    packed = gs.from_dense(pruned(256, 16 * m * 2, v, m, torch.float16), PackedVNM(v, 2, m))
    height = 256 if v == "all" else v
    assert packed.nbytes <= (2 / m) * (1.125 + 2 / height) * 256 * 16 * m * 2 * 2


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a row keeps 3 of 4 columns, at most 2 of each 4 fit"):
        gs.from_dense(torch.tensor([[1.0, 2, 3, 0]]), PackedVNM("all", 2, 4))
    five = torch.zeros(3, 8)
    five[0, :2], five[1, 2:4], five[2, 4] = 1.0, 1.0, 1.0
    gs.from_dense(five, PackedVNM(2, 2, 8))  # rows 0 and 1 share four columns, row 2 is alone
    with pytest.raises(ValueError, match="3 rows keep 5 different columns of a group of 8, at most 4 fit"):
        gs.from_dense(five, PackedVNM(3, 2, 8))


@pytest.mark.parametrize("format", [PackedVNM(64, 2, 8), PackedVNM("all", 2, 16), PackedVNM("all", 2, 4)], ids=repr)
def test_prints_and_reads_back(format):
    assert as_format(repr(format)) == format


def test_two_of_four_shares_nothing():
    assert PackedVNM(64, 2, 4) == PackedVNM("all", 2, 4) != PackedVNM("all", 2, 8)


@pytest.mark.parametrize(
    ("v", "n", "m"), [(0, 2, 8), ("every", 2, 8), (64, 1, 8), (64, 2, 3), (64, 2, 257), (64, 2, 8.0)]
)
def test_wrong_parameters(v, n, m):
    with pytest.raises(ValueError, match="must be"):
        PackedVNM(v, n, m)


def change(name, place, value):
    def apply(arrays, values):
        arrays[name].view(-1)[place] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("meta1", 0, 0), "does not ascend"),
        (change("meta1", 3, 0x44444454), "does not ascend"),
        (change("cols1", 0, 8), "outside 0 .. 7"),
        (change("cols1", slice(0, 4), 1), "does not ascend within a group"),
        (lambda a, v: a.update(meta1=a["meta1"][:-1]), "meta has 511 entries, must have 512"),
        (lambda a, v: a.update(meta1=a["meta1"].long()), "must be int32"),
        (lambda a, v: a.update(cols1=a["cols1"][:1]), "cols is"),
        (lambda a, v: a.update(cols1=a["cols1"].int()), "must be uint8"),
        (lambda a, v: v.fill_(1.0), "not zero"),  # rows past the last
    ],
)
def test_outside_arrays_are_checked(damage, message):
    t = gs.from_dense(pruned(70, 200, 16, 8), PackedVNM(16, 2, 8))
    arrays, values = {k: a.clone() for k, a in t.structure.arrays.items()}, t.values().clone()
    gs.SparseTensor.from_arrays(t.format, (70, 200), values, arrays)
    damage(arrays, values)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(t.format, (70, 200), values, arrays)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_computes_on_a_cpu(dtype):
    for v, m, shape in ((16, 8, (70, 130)), ("all", 4, (64, 64)), (3, 100, (5, 250))):
        dense = pruned(*shape, v, m, dtype)
        packed = gs.from_dense(dense, PackedVNM(v, 2, m))
        x, bias = torch.randn(6, shape[1]).to(dtype), torch.randn(shape[0]).to(dtype)
        bound = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(F.linear(x, packed, bias), F.linear(x, dense, bias), **bound)
        torch.testing.assert_close(packed @ x.t(), dense @ x.t(), **bound)


@pytest.mark.parametrize(("v", "m"), [(4, 8), ("all", 5), (1, 4)])
def test_gradients(v, m):
    packed = gs.from_dense(pruned(9, 22, v, m, torch.float64), PackedVNM(v, 2, m))
    x, bias = torch.randn(3, 22, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    where = packed.structure.entries().where

    def linear(x, entries, bias):
        values = packed.values().detach().index_put((where,), entries)
        return F.linear(x, gs.core.join.build(values, packed.structure), bias)

    inputs = [t.clone().requires_grad_() for t in (x, packed.values()[where], bias)]
    assert torch.autograd.gradcheck(linear, inputs)
    assert torch.autograd.gradgradcheck(linear, inputs)


def test_only_stored_places_train():
    dense = pruned(70, 100, 16, 8)
    weight = torch.nn.Parameter(gs.from_dense(dense, PackedVNM(16, 2, 8)))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        F.linear(torch.randn(4, 100), weight).square().sum().backward()
        optimizer.step()
    assert torch.equal(weight.detach().to_dense() != 0, weight.mask())
    weight.structure.check(weight.detach()._values)


def test_life_of_a_parameter():
    layer = gs.sparsify_(torch.nn.Linear(128, 70), gs.VNM(16, 2, 8), format=PackedVNM(16, 2, 8))
    x = torch.randn(3, 128)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = gs.sparsify_(torch.nn.Linear(128, 70), gs.VNM(16, 2, 8), format=PackedVNM(16, 2, 8))
    other.load_state_dict(torch.load(file))
    flat = {"values": layer.weight.detach().values(), **layer.weight.structure.arrays}
    read = load(save(flat))
    again = gs.SparseTensor.from_arrays(layer.weight.format, (70, 128), read.pop("values"), read)
    for weight in (other.weight, copy.deepcopy(layer).weight, again, layer.weight.detach().to("cpu")):
        assert weight.format == layer.weight.format
        assert torch.equal(F.linear(x, weight, layer.bias), layer(x))


@pytest.mark.parametrize(
    ("format", "transpose"),
    [(PackedVNM("all", 2, 4), gs.CSR()), (PackedNM(2, 4), PackedNM(2, 4).turned())],
    ids=repr,
)
def test_other_operators_work_on_it(format, transpose):
    dense = pruned(20, 64, "all", 4)
    t = gs.from_dense(dense, format)
    assert torch.equal(t.t().to_dense(), dense.t()) and t.t().format == transpose
    assert torch.equal(t.roll(1, 0).to_dense(), dense.roll(1, 0))
    assert torch.equal((t * 2).to_dense(), dense * 2)
    assert torch.equal(t.to_format(gs.CSR()).to_dense(), dense)
    torch.testing.assert_close(t.sum(), dense.sum())


@pytest.mark.parametrize(("rows", "cols", "m"), [(1, 1, 4), (64, 128, 4), (70, 600, 8), (130, 900, 100)])
def test_the_order_of_8_bits(rows, cols, m):
    """With a group = 32 step + 16 half + 8 upper + 2 lane + odd: the fragment of the instructions with k64."""
    dense = pruned(rows, cols, "all", m)
    packed = gs.from_dense(dense, PackedVNM("all", 2, m, 8))
    assert torch.equal(packed.to_dense(), dense)
    packed.structure.check(packed._values)
    tiles, steps = -(-rows // 64), -(-cols // (32 * m))
    values = packed.values().view(
        steps, tiles, 4, 2, 8, 4, 2, 2, 2, 2
    )  # step, r, strip, half, low, lane, upper, high, odd
    for group in range(0, -(-cols // m), 3):
        step, half, upper, lane, odd = group // 32, group // 16 % 2, group // 8 % 2, group // 2 % 4, group % 2
        for row in range(0, rows, 7):
            pair = values[step, row // 64, row // 16 % 4, half, row % 8, lane, upper, row // 8 % 2, odd]
            kept = dense[row, group * m : (group + 1) * m]
            assert sorted(pair[pair != 0].tolist()) == sorted(kept[kept != 0].tolist())
