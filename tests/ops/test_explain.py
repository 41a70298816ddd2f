"""gs.explain names what runs: calls that a guard refuses, layers, every form of a call, and random ones."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from benchmarks.opinfo import Asked
from gossamer.core.dispatch import choose
from gossamer.core.fallback import watch

FORMATS = [gs.CSR(), gs.COO(), gs.BSR((2, 2)), gs.Masked(), gs.ELL(), gs.formats.PackedCSR()]


def sparse(*shape, format=None, dtype=torch.float32):
    x = torch.randn(shape) * (torch.rand(shape) < 0.5)
    return gs.from_dense(x.to(dtype), format or gs.CSR())


def mask():
    return torch.rand(4, 6) < 0.5


#: A call that meets a guard, and a word of its reason.
REFUSED = {
    "max of bools": (lambda t: (torch.max, (t > 0, 0), {}), "no order"),
    "norm(nuc)": (lambda t: (torch.norm, (t, "nuc"), {}), "norm of matrices"),
    "indexing by a mask": (lambda t: (torch.Tensor.__getitem__, (t, mask()), {}), "mask"),
    "embedding(max_norm)": (lambda t: (F.embedding, (torch.tensor([1]), t), {"max_norm": 1.0}), "max_norm"),
    "pad(value=1)": (lambda t: (F.pad, (t, (1, 1)), {"value": 1.0}), "zeros"),
    "mm of another type": (lambda t: (torch.mm, (t, torch.randn(6, 2).double()), {}), "types"),
    "outer with a dense vector": (lambda t: (torch.outer, (sparse(3), torch.randn(3)), {}), "dense"),
    "cumsum": (lambda t: (torch.cumsum, (t, 0), {}), "no entry"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_a_guard_refuses_is_a_fallback_with_its_reason(name):
    make, word = REFUSED[name]
    op, args, kwargs = make(sparse(4, 6))
    said = gs.explain(op, *args, **kwargs)
    assert said.how == "fallback" and word in said.why
    with gs.fallback("silent"), watch() as seen:
        try:
            op(*args, **kwargs)
        except RuntimeError:
            assert "types" in word
    assert next(ran.how for ran in seen if ran.operator == said.operator) == "fallback"


FORMS = {
    "metadata": (lambda t: t.dim(), torch.Tensor.dim, "torch"),
    "in place, on the values": (lambda t: t.mul_(2), torch.Tensor.mul_, "native"),
    "a fill": (lambda t: t.fill_(2.0), torch.Tensor.fill_, "native"),
    "a copy": (lambda t: t.copy_(torch.ones(4, 6)), torch.Tensor.copy_, "native"),
    "in place, by a dense result": (lambda t: t.cumsum_(0), torch.Tensor.cumsum_, "fallback"),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_a_call(name):
    call, op, how = FORMS[name]
    args = {"mul_": (2,), "fill_": (2.0,), "copy_": (torch.ones(4, 6),), "cumsum_": (0,)}.get(op.__name__, ())
    assert gs.explain(op, sparse(4, 6), *args).how == how
    with gs.fallback("silent"):
        call(sparse(4, 6))


def test_out_and_lists():
    t = sparse(4, 6)
    assert gs.explain(torch.add, t, t, out=sparse(4, 6)).how == "native"
    said = gs.explain(torch.add, t, t, out=torch.empty(4, 6))
    assert said.how == "fallback" and said.why == "out= is dense, so sparse operands are made dense"
    assert gs.explain(torch._foreach_add_, [t, t], 1.0).how == "native"
    assert "each has its own decision" in gs.explain(torch._foreach_add, [t, t], 1.0).why
    assert gs.explain(F.relu, t, inplace=True).how == "native"


def test_the_names_of_keyword_arguments_do_not_matter():
    t, x = sparse(4, 6), torch.randn(2, 6)
    assert gs.explain(F.linear, input=x, weight=t).function == gs.explain(F.linear, x, t).function


def test_without_a_sparse_argument_it_is_torchs():
    assert gs.explain(torch.add, torch.ones(1), 1).how == "torch"


def test_masked_is_torchs_own_storage():
    said = gs.explain(torch.linalg.svd, sparse(4, 6, format=gs.Masked()))
    assert said.how == "storage" and "Masked stores a dense tensor" in said.why


def test_nothing_is_built_or_computed(monkeypatch):
    """A product on kernels that are not loaded yet is explained without building them."""
    monkeypatch.setattr("gossamer.native.loaded", lambda: None)
    monkeypatch.setattr("gossamer.native.load", lambda: pytest.fail("explain built the kernels"))
    said = gs.explain(F.linear, torch.randn(1, 64), sparse(32, 64, format=gs.formats.PackedCSR()))
    assert "RowsProduct" in said.why


def test_kernels_that_can_not_be_built_refuse_when_they_run(monkeypatch):
    weight, x = sparse(32, 64, format=gs.formats.PackedCSR()), torch.randn(3, 64)
    monkeypatch.setattr("gossamer.native.loaded", lambda: None)
    monkeypatch.setattr("gossamer.native.load", lambda: False)
    with torch.no_grad():
        torch.testing.assert_close(F.linear(x, weight), x @ weight.to_dense().t())
    monkeypatch.setattr("gossamer.native.loaded", lambda: False)
    assert "could not be built" in gs.explain(F.linear, x, weight).why


# -- random calls

SIZES = st.integers(1, 5)
UNARY = [torch.relu, torch.exp, torch.neg, torch.sum, torch.amax, torch.trace, torch.softmax, torch.cumsum, torch.svd]
BINARY = [torch.add, torch.mul, torch.div, torch.matmul, torch.maximum, torch.eq, torch.mm, torch.outer, F.linear]


@st.composite
def calls(draw):
    format = draw(st.sampled_from(FORMATS))
    shape = tuple(draw(st.lists(SIZES, min_size=2, max_size=2)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))

    def operand(shape):
        t = sparse(*shape, format=format, dtype=dtype)
        return t if draw(st.booleans()) else t.to_dense()

    if draw(st.booleans()):
        op = draw(st.sampled_from(UNARY))
        dim = (draw(st.sampled_from([0, 1, -1])),) if op not in (torch.relu, torch.neg, torch.trace, torch.svd) else ()
        keep = {"keepdim": True} if op in (torch.sum, torch.amax) and draw(st.booleans()) else {}
        return op, (sparse(*shape, format=format, dtype=dtype), *dim), keep
    op = draw(st.sampled_from(BINARY))
    other = draw(st.sampled_from([shape, shape[::-1], shape[1:], (1, shape[1])]))
    first = sparse(*shape, format=format, dtype=dtype)
    pair = (first, operand(other)) if draw(st.booleans()) else (operand(other), first)
    return op, pair, {"alpha": 2} if op is torch.add and draw(st.booleans()) else {}


@pytest.mark.filterwarnings("ignore::gossamer.FallbackWarning")
@settings(max_examples=300, deadline=None)
@given(calls())
def test_random_calls_run_what_explain_names(call):
    op, args, kwargs = call
    if not any(isinstance(a, gs.SparseTensor) for a in args):
        return
    asked = Asked()
    with gs.fallback("silent"):
        try:
            asked.around(op)(*args, **kwargs)
        except (RuntimeError, IndexError, TypeError):
            return  # the dense call fails too: that it does is tested with each operator
    assert not asked.problems


def test_a_decision_prints_itself():
    decision = choose(torch.abs, (sparse(2, 2),))
    text = "abs(CSR): native, gossamer.ops.pointwise.abs; abs(Format, Format, Format) accepts these formats"
    assert repr(decision) == text


LAYERS = {
    "linear": (lambda: nn.Linear(8, 8), (3, 8)),
    "conv1d": (lambda: nn.Conv1d(4, 8, 3, padding=1), (1, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 8, 3, groups=2, padding="same"), (1, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 8, 2, stride=2), (1, 4, 4, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_explained_like_the_operator_that_it_calls(name):
    make, shape = LAYERS[name]
    x = torch.randn(shape)
    dense = gs.explain(make(), x)
    assert (dense.operator, dense.how) == (name, "torch")
    masked = gs.explain(gs.sparsify_(make(), "50%"), x)
    assert (masked.operator, masked.how) == (name, "storage") and "masked" in masked.why
    stored = gs.sparsify_(make(), "50%", format=gs.formats.PackedCSR())
    assert gs.explain(stored, x).how == "native"
    with gs.fallback("error"):
        stored(x)


def test_layers_in_eight_bits():
    model = gs.sparsify_(nn.Sequential(nn.Linear(64, 32)), "90%")
    x = torch.randn(2, 64)
    both = gs.explain(gs.quantize_(copy.deepcopy(model), "int8")[0], x)
    assert both.how == "native" and "a range for each token" in both.why
    fixed = gs.quantize_(copy.deepcopy(model), "int8", calibration=[x])[0]
    assert "a fixed range" in gs.explain(fixed, x).why
    packed = gs.sparsify_(nn.Sequential(nn.Linear(64, 32)), "90%", format=gs.formats.PackedCSR())
    weights = gs.explain(gs.quantize_(packed)[0], x)
    assert weights.how == "native" and "int8 values" in weights.why


def test_a_module_of_several_operators_names_what_can_be_explained():
    with pytest.raises(TypeError, match=r"LSTM calls several operators.*F\.linear"):
        gs.explain(nn.LSTM(4, 4), torch.ones(1, 1, 4))


def test_attention():
    mask, q = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4, 8)
    found = gs.explain(gs.attention, q, q, q, mask)
    assert found.how == "compiled" and "three steps for each head" in found.why and "there is no GPU" in found.why
    with pytest.raises(ValueError, match="must agree"):
        gs.explain(gs.attention, q, q[:3], q, mask=mask)
