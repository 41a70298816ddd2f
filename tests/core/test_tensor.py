"""SparseTensor survives what people do to tensors."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from tests.formats_under_test import ALL

formats = pytest.mark.parametrize("format", ALL, ids=repr)


def example(format, shape=(6, 8), density=0.4):
    """A tensor and its dense twin."""
    x = torch.randn(shape)
    x = x * (torch.rand(shape) < density)
    return gs.from_dense(x, format), x


def test_repr_shows_shape_format_density_and_bytes():
    t = gs.from_dense(torch.eye(4), gs.CSR())
    text = "SparseTensor(shape=(4, 4), format=CSR(), dtype=float32, nnz=4, density=25.0 %, bytes=52 of 64)"
    assert repr(t) == text


def test_properties_by_hand():
    t = gs.from_dense(torch.tensor([[0.0, 3.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]), gs.CSR())
    assert (t.nnz, t.density, t.sparsity) == (2, 0.25, 0.75)
    assert t.nbytes == 2 * 4 + 3 * 4 + 2 * 4  # values, pos, crd
    assert t.values().tolist() == [3.0, 4.0]
    assert t.mask().tolist() == [[False, True, False, False], [True, False, False, False]]


@formats
def test_it_is_a_tensor_with_the_dense_shape(format):
    t, x = example(format)
    assert isinstance(t, torch.Tensor)
    assert (t.shape, t.dtype, t.device, t.ndim, t.numel()) == (x.shape, x.dtype, x.device, 2, 48)
    assert len(t) == 6
    assert t.size(1) == 8
    assert not t.requires_grad
    assert t.is_leaf


@formats
def test_detach_shares_and_clone_copies(format):
    t, x = example(format)
    detached, cloned = t.detach(), t.clone()
    t.mul_(2)
    assert torch.equal(detached.to_dense(), 2 * x)
    assert torch.equal(cloned.to_dense(), x)
    assert cloned.format == detached.format == t.format


@formats
def test_deepcopy_and_pickle(format):
    t, x = example(format)
    t.requires_grad_()
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert torch.equal(other.detach().to_dense(), x)
        assert other.requires_grad
        assert other.format == t.format


@formats
def test_save_and_load_with_weights_only(format):
    t, x = example(format)
    buffer = io.BytesIO()
    torch.save({"t": t, "p": nn.Parameter(t)}, buffer)
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    assert torch.equal(loaded["t"].to_dense(), x)
    assert isinstance(loaded["p"], nn.Parameter)


def test_a_tampered_file_is_refused():
    t = gs.from_dense(torch.eye(4), gs.CSR())
    t._crd1.fill_(7)  # out of range: what a kernel would read past the end with
    buffer = io.BytesIO()
    torch.save(t, buffer)
    with pytest.raises(ValueError, match=r"CSR\(\).*coordinates 7 .. 7, must lie in 0 .. 3"):
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


@formats
def test_to_dtype_and_device(format):
    t, x = example(format)
    assert torch.equal(t.to(torch.float64).to_dense(), x.double())
    assert torch.equal(t.bfloat16().to_dense(), x.bfloat16())
    assert t.to(torch.float32) is t
    assert t.to("cpu") is t
    assert t.double().dtype == torch.float64


@formats
def test_module_keeps_it_through_to_and_state_dict(format):
    layer = nn.Linear(8, 6)
    layer.weight = nn.Parameter(example(format)[0])
    layer = layer.double().float()
    assert isinstance(layer.weight, gs.SparseTensor)
    other = nn.Linear(8, 6)
    other.weight = nn.Parameter(example(format)[0])  # another pattern: the loaded one must win
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight.detach().to_dense(), layer.weight.detach().to_dense())
    assert torch.equal(other.weight.mask(), layer.weight.mask())


def test_dense_modules_load_sparse_checkpoints_and_the_other_way():
    sparse, dense = nn.Linear(8, 6), nn.Linear(8, 6)
    gs.sparsify_(sparse, "50%")
    mask = sparse.weight.mask()
    dense.load_state_dict(sparse.state_dict())
    assert torch.equal(dense.weight, sparse.weight)
    fresh = nn.Linear(8, 6)
    sparse.load_state_dict(fresh.state_dict())
    assert torch.equal(sparse.weight, fresh.weight * mask)


@formats
def test_views_transposes_rows_and_joins_stay_sparse(format):
    t, x = example(format)
    pairs = [
        (t.T, x.T), (t.t(), x.t()), (t.transpose(0, 1), x.transpose(0, 1)), (t.permute(1, 0), x.permute(1, 0)),
        (t[2], x[2]), (t[1:4], x[1:4]), (t[[4, 0, 4]], x[[4, 0, 4]]), (t[:, 2:7:2], x[:, 2:7:2]), (t[-1], x[-1]),
        (t.reshape(4, 12), x.reshape(4, 12)), (t.view(-1), x.view(-1)), (t.flatten(), x.flatten()),
        (t.unsqueeze(0), x.unsqueeze(0)), (torch.cat([t, t]), torch.cat([x, x])),
        (torch.cat([t, t], 1), torch.cat([x, x], 1)), (torch.stack([t, t]), torch.stack([x, x])),
    ]  # fmt: skip
    for got, expected in pairs:
        assert isinstance(got, gs.SparseTensor)
        assert torch.equal(got.to_dense(), expected)
        got.structure.check(got._values)


@formats
def test_gradients_of_a_use_in_two_places_add_up(format):
    t, x = example(format)
    p, d = nn.Parameter(t), x.clone().requires_grad_()
    for w in (p, d):
        (F.linear(torch.ones(2, 8), w).sum() + (w * 3).sum() + torch.sin(w).sum()).backward()
    assert isinstance(p.grad, gs.SparseTensor)
    torch.testing.assert_close(p.grad.to_dense(), d.grad * t.mask())


@formats
def test_gradient_accumulates_over_two_backwards(format):
    p = nn.Parameter(example(format)[0])
    F.linear(torch.ones(2, 8), p).sum().backward()
    once = p.grad.to_dense().clone()
    F.linear(torch.ones(2, 8), p).sum().backward()
    torch.testing.assert_close(p.grad.to_dense(), 2 * once)


@formats
def test_a_dense_gradient_on_request(format):
    t, _ = example(format)
    p = nn.Parameter(t)
    p.grad_format = gs.Dense()
    x = torch.randn(3, 8)
    F.linear(x, p).sum().backward()
    assert type(p.grad) is torch.Tensor
    torch.testing.assert_close(p.grad, torch.ones(6, 3) @ x)
    p.grad = None
    (p * 2).sum().backward()
    torch.testing.assert_close(p.grad, torch.full((6, 8), 2.0))


def test_weights_changed_between_forward_and_backward_are_noticed():
    p = nn.Parameter(example(gs.CSR())[0])
    loss = F.linear(torch.ones(2, 8, requires_grad=True), p).sum()
    with torch.no_grad():
        p.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_on_a_leaf_that_requires_grad_is_torch_s_error():
    p = nn.Parameter(example(gs.CSR())[0])
    with pytest.raises(RuntimeError, match="leaf"):
        p.mul_(2)
    with pytest.raises(RuntimeError, match="leaf"):
        p.zero_()


@formats
def test_in_place_in_a_graph(format):
    t, x = example(format)
    p, d = nn.Parameter(t), x.clone().requires_grad_()
    outs = []
    for w in (p, d):
        y = w * 2
        y.mul_(3)
        outs.append(y)
        y.sum().backward()
    torch.testing.assert_close(outs[0].to_dense(), outs[1])
    torch.testing.assert_close(p.grad.to_dense(), d.grad * t.mask())


@formats
def test_in_place_writes_to_stored_positions_only(format):
    t, x = example(format)
    mask, other = t.mask(), torch.randn(6, 8)
    t.add_(other).mul_(2).add_(1)
    torch.testing.assert_close(t.to_dense(), ((x + other) * 2 + 1) * mask)


@formats
def test_autocast_computes_in_bfloat16(format):
    t, x = example(format)
    inputs = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = F.linear(inputs, t), F.linear(inputs, x)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=2**-6, atol=2**-6)


def test_hash_equality_and_membership():
    t, x = example(gs.CSR())
    assert t in {t: 1}
    assert torch.equal(t, t.clone())
    assert not torch.equal(t, t * 2)
    assert torch.equal((t == t.to_format(gs.COO())).to_dense(), x == x)


def test_formats_convert_both_ways():
    t, x = example(gs.CSR())
    for format in ALL:
        there = t.to_format(format)
        assert there.format == format
        assert torch.equal(there.to_format(gs.CSR()).to_dense(), x)
    assert type(t.to_format(gs.Dense())) is torch.Tensor


def test_optimizer_state_has_the_pattern_of_its_weight():
    p = nn.Parameter(gs.sparsify(torch.randn(64, 64), "90%"))
    optimizer = torch.optim.Adam([p])
    F.linear(torch.randn(3, 64), p).sum().backward()
    optimizer.step()
    moment = optimizer.state[p]["exp_avg"]
    assert isinstance(moment, gs.SparseTensor)
    assert moment.structure.same(p.structure)
    assert moment.nbytes < 64 * 64 * 4 * 0.25


def test_formatting_is_the_repr():
    t = gs.from_dense(torch.eye(4), gs.CSR())
    assert f"{t}" == str(t) == repr(t)


@formats
def test_what_is_not_stored_does_not_meet_infinity(format):
    x = torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 0.0]])
    t = gs.from_dense(x, format)
    got = F.linear(torch.tensor([[1.0, float("inf")]]), t)
    if format.any_pattern and format != gs.Masked():
        assert got.tolist() == [[1.0, float("inf"), 0.0]]  # dense: [nan, inf, nan]


@pytest.mark.parametrize("format", [gs.CSR(), gs.Masked(), gs.ELL()], ids=repr)
def test_memory_can_be_shared(format):
    t = gs.from_dense(torch.eye(3), format)
    assert not t.is_shared()
    assert t.share_memory_() is t
    assert t.is_shared()
    assert all(a.is_shared() for a in t.structure.arrays.values())
    assert torch.equal(t.to_dense(), torch.eye(3))


@formats
def test_values_of_another_shape_are_refused(format):
    t, _ = example(format)
    for shape in {(), (0,), (1,), (*t.values().shape, 2), (t.values().numel() + 1,)}:
        with pytest.raises(ValueError, match=r"the values are \(.*must be"):
            gs.SparseTensor(torch.zeros(shape), t.structure)
