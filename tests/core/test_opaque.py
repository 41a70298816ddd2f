"""Weights of a user's own class: taken for tensors by every torch function, natively or on a dense copy."""

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.core.fallback import watch
from gossamer.core.table import _TABLE, changed


class Pieces(gs.Opaque):
    """Low rank plus sparse: two parameters, and a sparse layer for the rest."""

    def __init__(self, dense, rank=3):
        super().__init__(dense.shape)
        u, s, v = torch.linalg.svd(dense.detach(), full_matrices=False)
        self.left, self.right = nn.Parameter(u[:, :rank] * s[:rank]), nn.Parameter(v[:rank])
        rest = nn.Linear(*reversed(dense.shape), bias=False, dtype=dense.dtype)
        rest.weight.data.copy_(dense.detach() - (self.left @ self.right).detach())
        self.rest = gs.sparsify_(rest, "75%", format=gs.CSR())

    def to_dense(self):
        return self.left @ self.right + self.rest.weight.to_dense()


class Codes(gs.Opaque):
    """Eight bits and a scale for each row; nothing is trained."""

    def __init__(self, dense):
        super().__init__(dense.shape)
        self.register_buffer("scale", dense.detach().abs().amax(1, keepdim=True) / 127)
        self.register_buffer("codes", (dense.detach() / self.scale).round().to(torch.int8))

    def to_dense(self):
        return self.codes * self.scale


@pytest.fixture(autouse=True)
def quiet():
    with gs.fallback("silent"):
        yield


def linear_pieces(x, weight, bias=None):
    low = F.linear(F.linear(x, weight.right), weight.left, bias)
    return low + F.linear(x, weight.rest.weight)


@pytest.fixture
def kernel():
    """A function for linear layers with pieces, gone after the test; gives the calls of it."""
    gs.implements(F.linear, (gs.Dense, Pieces, gs.Dense))(linear_pieces)
    with watch() as seen:
        yield lambda: [call for call in seen if call.function.endswith("linear_pieces")]
    _TABLE["linear"] = [e for e in _TABLE["linear"] if e.function is not linear_pieces]
    changed()


CALLS = {
    "linear": lambda x, w: F.linear(x, w),
    "linear bias": lambda x, w: F.linear(x, w, torch.ones(w.shape[0], dtype=x.dtype)),
    "matmul": lambda x, w: x @ w.t(),
    "w first": lambda x, w: w @ x.t(),
    "method": lambda x, w: w.matmul(x.t()),
    "mul": lambda x, w: 2 * w * w + 1 - w / 3,
    "rsub": lambda x, w: x[:1].sum() - w,
    "sum": lambda x, w: w.sum(0),
    "T": lambda x, w: w.T.contiguous(),
    "index": lambda x, w: w[1:3, ::2],
    "neg abs": lambda x, w: abs(-w),
    "cat": lambda x, w: torch.cat([w, torch.ones_like(w.to_dense())]),
    "einsum": lambda x, w: torch.einsum("ij,kj->ik", x, w),
    "norm": lambda x, w: torch.linalg.norm(w),
    "to": lambda x, w: w.to(torch.float32),
    "float": lambda x, w: torch.nn.functional.dropout(w, 0.0),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [Pieces, Codes])
def test_any_call_is_that_of_the_dense_tensor(kind, name):
    torch.manual_seed(0)
    weight, x = kind(torch.randn(6, 10, dtype=torch.float64)), torch.randn(4, 10, dtype=torch.float64)
    torch.testing.assert_close(CALLS[name](x, weight), CALLS[name](x, weight.to_dense()))


def test_what_one_asks_of_a_weight():
    weight = Codes(torch.randn(6, 10, dtype=torch.float64))
    assert (weight.shape, weight.dim(), weight.ndim, weight.numel(), weight.size(1)) == ((6, 10), 2, 2, 60, 10)
    assert weight.dtype == torch.float64 and weight.device.type == "cpu" and not weight.requires_grad
    assert weight.is_floating_point() and not weight.is_cuda
    assert weight.nbytes == 6 * 8 + 60 and weight.sparsity == pytest.approx(0, abs=0.05)
    assert "shape=(6, 10)" in repr(weight)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        weight.nothing_like_this
    with pytest.raises(NotImplementedError, match="Opaque needs a method to_dense"):
        gs.Opaque((2, 2)).to_dense()


def test_the_kernel_runs_and_explain_says_so(kernel):
    layer = nn.Linear(10, 6)
    weight = Pieces(layer.weight)
    x = torch.randn(4, 10)
    torch.testing.assert_close(F.linear(x, weight, layer.bias), F.linear(x, weight.to_dense(), layer.bias))
    assert len(kernel()) == 1
    told = str(gs.explain(F.linear, x, weight, layer.bias))
    assert "native" in told and "linear_pieces" in told
    assert "fallback" in str(gs.explain(torch.cumsum, weight, 0))
    assert len(kernel()) == 1  # explain computes nothing


def test_a_dense_copy_warns():
    weight = Codes(torch.randn(3, 4))
    with gs.fallback("warn"), pytest.warns(gs.FallbackWarning, match=r"cummax\(Codes\)"):
        torch.cummax(weight, 0)
    with gs.fallback("error"), pytest.raises(NotImplementedError, match="cummin"):
        torch.cummin(weight, 0)


@pytest.mark.parametrize("call", [lambda w: w.add_(1), lambda w: w.zero_(), lambda w: torch.relu_(w)])
def test_it_is_not_written_to(call):
    with pytest.raises(TypeError, match="computed from its parts"):
        call(Codes(torch.randn(3, 4)))


def test_as_a_weight_it_trains(kernel):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    gs.nn.hold_(model[0], Pieces(model[0].weight))
    names = [name for name, _ in model.named_parameters()]
    assert names[:4] == ["0.bias", "0.weight.left", "0.weight.right", "0.weight.rest.weight_values"]
    x, y = torch.randn(8, 10).double(), torch.randn(8, 2).double()
    dense = copy.deepcopy(model)
    first = {}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        first.setdefault("loss", loss.item())
        if step == 0:
            out = F.linear(
                F.relu(F.linear(x, dense[0].weight.to_dense(), dense[0].bias)), dense[2].weight, dense[2].bias
            )
            F.mse_loss(out, y).backward()
            for (name, p), q in zip(model.named_parameters(), dense.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, msg=name)
        optimizer.step()
    assert loss.item() < 0.8 * first["loss"] and len(kernel()) == 20


def test_copies_files_and_moves():
    model = nn.Sequential(nn.Linear(10, 6), nn.Linear(6, 4))
    gs.nn.hold_(model[0], Pieces(model[0].weight))
    gs.nn.hold_(model[1], Codes(model[1].weight))
    x = torch.randn(3, 10)
    expected = model(x)
    other = copy.deepcopy(model)
    torch.testing.assert_close(other(x), expected)
    with torch.no_grad():
        other[0].weight.left.zero_()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), expected)
    assert model.double()(x.double()).dtype == torch.float64


def test_saved_and_loaded(tmp_path):
    model = nn.Sequential(nn.Linear(10, 6))
    gs.nn.hold_(model[0], Pieces(model[0].weight))
    expected = model(torch.ones(2, 10))
    gs.save(model, tmp_path / "m.safetensors")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    gs.load(model, tmp_path / "m.safetensors")
    torch.testing.assert_close(model(torch.ones(2, 10)), expected)


def test_summary_flops_and_back_to_dense():
    model = nn.Sequential(nn.Linear(10, 6), nn.Linear(6, 4))
    gs.nn.hold_(model[0], Pieces(model[0].weight))
    x = torch.randn(3, 10)
    expected = model(x)
    rows = {row.name: row for row in gs.summary(model).rows}
    assert set(rows) == {"0.bias", "1.weight", "1.bias", "0.weight"} and rows["0.weight"].format == "Pieces"
    assert rows["0.weight"].bytes == model[0].weight.nbytes
    assert gs.count_flops(model, x).dense == 2 * 3 * (60 + 24)
    assert isinstance(gs.densify_(model)[0].weight, nn.Parameter)
    torch.testing.assert_close(model(x), expected)


def test_others_leave_it_alone():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    gs.nn.hold_(model[0], Codes(model[0].weight))
    gs.sparsify_(model, "50%")
    assert isinstance(model[0].weight, Codes) and model[1].weight.sparsity == 0.5
    gs.pack_(model, torch.randn(4, 32))
    assert isinstance(model[0].weight, Codes)


def test_convolutions_and_embeddings():
    conv = nn.Conv2d(3, 5, 3)
    expected, x = copy.deepcopy(conv), torch.randn(2, 3, 8, 8)

    class Half(gs.Opaque):
        def __init__(self, dense):
            super().__init__(dense.shape)
            self.part = nn.Parameter(dense.detach() / 2)

        def to_dense(self):
            return self.part * 2

    gs.nn.hold_(conv, Half(conv.weight))
    torch.testing.assert_close(conv(x), expected(x))
    table = nn.Embedding(7, 4)
    want = table.weight.detach()[torch.tensor([1, 6])]
    gs.nn.hold_(table, Half(table.weight))
    torch.testing.assert_close(table(torch.tensor([1, 6])), want)


def test_sparse_before_and_replaced_again():
    layer = gs.sparsify_(nn.Linear(8, 8), "50%")
    gs.nn.hold_(layer, Codes(layer.weight))
    assert type(layer) is nn.Linear and layer.weight.sparsity >= 0.5
    gs.nn.hold_(layer, Pieces(layer.weight.to_dense()))
    assert isinstance(layer.weight, Pieces)


def test_bad_input():
    layer = nn.Linear(8, 4)
    with pytest.raises(ValueError, match=r"shape \(4, 8\).*Codes.*\(8, 4\)"):
        gs.nn.hold_(layer, Codes(torch.randn(8, 4)))
    with pytest.raises(ValueError, match="no weight 'kernel'"):
        gs.nn.hold_(layer, Codes(torch.randn(4, 8)), "kernel")
    with pytest.raises(TypeError, match=r"takes a gs\.Opaque"):
        gs.nn.hold_(layer, torch.randn(4, 8))
    with pytest.raises(TypeError, match="classes such as"):
        gs.implements(F.linear, (int,))
    assert isinstance(layer.weight, nn.Parameter)


@pytest.mark.parametrize("kind", [Pieces, Codes])
def test_compiled(kind, kernel):
    layer = nn.Linear(10, 6)
    gs.nn.hold_(layer, kind(layer.weight))
    x = torch.randn(4, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))


def test_autocast(kernel):
    layer = nn.Linear(10, 6)
    gs.nn.hold_(layer, Pieces(layer.weight))
    x = torch.randn(4, 10)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x), rtol=5e-2, atol=5e-2)
