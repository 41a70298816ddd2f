"""Grouped convolutions by the weight of the same convolution without groups."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR, PackedNM
from gossamer.ops.grouped import ungrouped
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, sample

FORMATS = [f for f in ALL if f != gs.Masked()]


def test_by_hand():
    # two groups of one row each: the second reads channels 2 and 3
    w = gs.from_dense(torch.tensor([[[0.0], [2.0]], [[3.0], [0.0]]]), gs.CSR())
    assert ungrouped(w, 2).to_dense().squeeze(2).tolist() == [[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]]
    x = torch.tensor([[[1.0], [10.0], [100.0], [1000.0]]])
    assert F.conv1d(x, w, groups=2).tolist() == [[[20.0], [300.0]]]


@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_values_and_gradients(format, dims):
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    x = torch.randn(2, 6, *(5, 4, 6)[:dims], dtype=torch.float64)
    bias = torch.randn(9, dtype=torch.float64)
    check(lambda x, w, b: conv(x, w, b, padding=1, groups=3), x, sample((9, 2, *(3, 2, 3)[:dims]), format), bias)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from(FORMATS),
)
def test_any_sizes(groups, channels, outputs, stride, dilation, format):
    torch.manual_seed(0)
    x = torch.randn(2, groups * channels, 7, 6, dtype=torch.float64)
    w = sample((groups * outputs, channels, 3, 2), format)
    check(
        lambda x, w: F.conv2d(x, w, None, stride, 1, dilation, groups), x, w, gradients=False
    )  # depthwise with one channel each


@pytest.mark.parametrize("format", [PackedCSR(), Condensed(), PackedNM(2, 4)], ids=repr)
def test_packed_formats(format):
    pattern = "fan-in 50%" if isinstance(format, Condensed) else "2:4"
    dense = torch.randn(8, 4, 3, 3)
    w = gs.sparsify(dense, pattern, format=format)
    x = torch.randn(2, 8, 6, 6)
    with gs.fallback("error"):
        torch.testing.assert_close(F.conv2d(x, w, groups=2), F.conv2d(x, w.to_dense(), groups=2), rtol=1e-4, atol=1e-5)
    assert ungrouped(w, 2).format == PackedCSR()


def test_the_other_structure_is_made_once():
    w = sample((4, 2, 3), gs.CSR())
    assert ungrouped(w, 2).structure is ungrouped(w * 2, 2).structure


def test_errors_and_refusals():
    w, x = sample((4, 2, 3, 3), gs.CSR()), torch.randn(1, 4, 8, 8, dtype=torch.float64)
    wrong = {"channels": (x[:, :3], 2), "rows": (torch.cat([x, x[:, :2]], 1), 3)}
    for given_, groups in wrong.values():
        check_refused(lambda w, x=given_, g=groups: F.conv2d(x, w, groups=g), "numbers of channels", w)
    w.grad_format = gs.Dense()
    w.requires_grad_()
    with gs.fallback("silent"):
        (F.conv2d(x, w, groups=2) ** 2).sum().backward()
    dense = w.detach().to_dense().requires_grad_()
    (F.conv2d(x, dense, groups=2) ** 2).sum().backward()
    torch.testing.assert_close(w.grad, dense.grad)


def test_a_compiled_layer_in_groups():
    layer = torch.nn.Conv2d(4, 4, 3, groups=2)
    gs.sparsify_(layer, "50%", format=gs.CSR())
    x = torch.randn(1, 4, 6, 6)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
