"""Sparse weights from a state_dict: bits of masks, names of formats, and which pattern wins."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from gossamer.models.loading import as_bits, format_of, from_bits, pattern_of

T, F = True, False


def layer(mask, format=None):
    mask = torch.tensor(mask)
    made = nn.Linear(mask.shape[1], mask.shape[0], bias=False)
    gs.nn.all_weights(made)["weight"].become(torch.ones(mask.shape), mask, format or gs.Masked())
    return made


def test_bits_by_hand():
    assert as_bits(torch.tensor([[T, F, T], [F, T, F]])).tolist() == [0b010101]
    assert as_bits(torch.tensor([F] * 7 + [T, T])).tolist() == [128, 1]
    assert from_bits(torch.tensor([128, 1], dtype=torch.uint8), torch.Size([3, 3])).flatten().tolist() == [F] * 7 + [
        T,
        T,
    ]


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(0, 7), st.integers(0, 99))
def test_from_bits_undoes_as_bits(rows, cols, seed):
    mask = torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed)) < 0.5
    assert torch.equal(from_bits(as_bits(mask), mask.shape), mask)
    assert torch.equal(from_bits(as_bits(mask.t()), mask.t().shape), mask.t())


@pytest.mark.parametrize("bits", [None, [1], torch.tensor([1]), torch.ones(2, dtype=torch.uint8), torch.tensor(1.0)])
def test_what_is_no_mask_of_that_shape(bits):
    assert from_bits(bits, torch.Size([2, 4])) is None


def test_names_of_formats():
    text = torch.tensor(list(b"BSR((2, 2))"), dtype=torch.uint8)
    assert format_of(text) == gs.BSR((2, 2))
    for wrong in (text.int(), text[None], torch.zeros(1001, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="the name of a format is at most 1000 bytes of text"):
            format_of(wrong)


MASK = torch.tensor([T, T, F, F])


@pytest.mark.parametrize(
    ("values", "known", "want"),
    [
        ([0, 1, 0, 0], None, [T, T, F, F]),  # fits: a kept value may be 0
        ([0, 0, 1, 1], None, [F, F, T, T]),  # as sparse: its own
        ([0, 0, 1, 0], None, [F, F, T, F]),  # sparser: its own
        ([1, 1, 1, 0], None, [T, T, F, F]),  # denser: masked
        ([0, 0, 1, 0], [F, T, T, F], [F, T, T, F]),  # as it was saved
        ([1, 0, 1, 0], [F, T, T, F], [T, F, T, F]),  # changed since: that mask is not believed
        ([0, 1, 0, 0], [F, T, T, F], [F, T, T, F]),  # the saved one before the module's
    ],
)
def test_which_pattern_wins(values, known, want):
    known = None if known is None else torch.tensor(known)
    assert pattern_of(torch.tensor(values, dtype=torch.float32), MASK, known).tolist() == want


def test_a_sparse_tensor_brings_its_pattern():
    t = gs.SparseTensor.from_arrays(
        gs.COO(), (4,), torch.zeros(1), {"pos0": torch.tensor([0, 1]), "crd0": torch.tensor([3])}
    )
    assert pattern_of(t, MASK).tolist() == [F, F, F, T]


A, B = [[T, F, T, F], [F, T, F, T]], [[F, T, F, T], [T, F, T, F]]


@pytest.mark.parametrize("into", [gs.Masked(), gs.CSR(), gs.COO()], ids=repr)
@pytest.mark.parametrize("source", [gs.Masked(), gs.CSR()], ids=repr)
def test_the_pattern_of_a_state_dict_is_taken(source, into):
    one, other = layer(A, source), layer(B, into)
    weight = gs.nn.all_weights(other)["weight"].parameter
    other.load_state_dict(one.state_dict())
    assert other.weight.format == into and other.weight.mask().tolist() == A
    assert gs.nn.all_weights(other)["weight"].parameter is weight
    assert other(torch.tensor([[1.0, 2.0, 4.0, 8.0]])).tolist() == [[5.0, 10.0]]


def test_a_stored_weight_that_is_not_whole_is_refused():
    state = layer(A, gs.CSR()).state_dict()
    del state["weight_crd1"]
    with pytest.raises(ValueError, match=r"a weight in CSR\(\) lacks weight_crd1"):
        layer(B, gs.CSR()).load_state_dict(state)
    state = layer(A, gs.CSR()).state_dict()
    state["weight_crd1"] = state["weight_crd1"] + 9
    with pytest.raises(ValueError, match="crd has coordinates"):
        layer(B, gs.CSR()).load_state_dict(state)


def test_another_shape_is_torchs_error():
    for format in (gs.Masked(), gs.CSR()):
        with pytest.raises(RuntimeError, match=r"size mismatch|Unexpected key|shape"):
            layer(A, format).load_state_dict(nn.Linear(3, 2, bias=False).state_dict())
