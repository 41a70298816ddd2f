"""Multi-head attention with sparse projections, against torch's own with dense ones."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.models.pack import tune


def modules(format=None, **options):
    torch.manual_seed(0)
    dense = nn.MultiheadAttention(12, 3, **options).double()
    if dense.in_proj_bias is not None:
        nn.init.normal_(dense.in_proj_bias)
        nn.init.normal_(dense.out_proj.bias)
    sparse = gs.sparsify_(dense, "50%", format=format or gs.CSR())
    return sparse, gs.densify_(copy.deepcopy(sparse))


def compare(sparse, dense, *inputs, **options):
    inputs = [x.double() for x in inputs]
    with gs.fallback("error"):
        out, shares = sparse(*inputs, **options)
    want, theirs = dense(*inputs, **options)
    torch.testing.assert_close(out, want)
    assert (shares is None) == (theirs is None)
    if shares is not None:
        torch.testing.assert_close(shares, theirs)
    return out, want


SELF = torch.randn(5, 2, 12, generator=torch.Generator().manual_seed(1))
OTHER = torch.randn(7, 2, 12, generator=torch.Generator().manual_seed(2))
PADDING = torch.arange(5).expand(2, 5) >= torch.tensor([[5], [3]])
CAUSAL = torch.ones(5, 5).triu(1).bool()


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.ELL(), gs.BSR((2, 2))], ids=repr)
@pytest.mark.parametrize("need", [True, False], ids=["with weights", "without"])
def test_self_attention_and_gradients(format, need):
    sparse, dense = modules(format)
    x = SELF
    for out in compare(sparse, dense, x, x, x, need_weights=need):
        (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum().backward()
    for name in ("in_proj_weight", "out_proj.weight"):
        path, _, last = name.rpartition(".")
        weight = getattr(sparse.get_submodule(path), last)
        theirs = dense.get_parameter(name).grad
        torch.testing.assert_close(weight.grad.to_dense(), theirs * weight.mask())


OPTIONS = {
    "causal": {"attn_mask": CAUSAL},
    "causal, said": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    "numbers": {"attn_mask": torch.randn(5, 5).double()},
    "for each head": {"attn_mask": torch.randn(6, 5, 5).double(), "average_attn_weights": False},
    "padding": {"key_padding_mask": PADDING},
    "both": {"key_padding_mask": PADDING, "attn_mask": CAUSAL, "need_weights": False},
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # torch's, of its own
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("more", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}], ids=str)
def test_masks(name, more):
    x = SELF
    options = {
        k: v.double() if isinstance(v, torch.Tensor) and v.dtype != torch.bool else v for k, v in OPTIONS[name].items()
    }
    compare(*modules(**more), x, x, x, **options)


def test_other_keys_and_values():
    compare(*modules(), SELF, OTHER, OTHER)
    compare(*modules(kdim=8, vdim=6), SELF, OTHER[..., :8], OTHER[..., :6])


def test_one_sequence_without_a_batch():
    compare(*modules(), SELF[:, 0], OTHER[:, 0], OTHER[:, 0])
    compare(*modules(batch_first=True), SELF.transpose(0, 1), OTHER.transpose(0, 1), OTHER.transpose(0, 1))


def test_dropout_only_while_training():
    sparse, dense = modules(dropout=0.9)
    x = SELF
    compare(sparse.eval(), dense.eval(), x, x, x)
    with gs.fallback("error"):
        assert not torch.equal(sparse.train()(x.double(), x.double(), x.double())[0], sparse(*[x.double()] * 3)[0])


def test_what_a_guard_refuses():
    x, w = torch.randn(5, 2, 12), gs.from_dense(torch.eye(12), gs.CSR())
    given = (x[..., :6], x, x, 12, 3, torch.randn(36, 12), None, None, None, False, 0.0, w, None)
    said = gs.explain(F.multi_head_attention_forward, *given)
    assert said.how == "fallback"
    assert "width" in said.why
    with gs.fallback("silent"), pytest.raises(AssertionError, match="embedding dimension"):
        F.multi_head_attention_forward(*given)


def test_an_encoder_is_packed_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(
        tune, "_interleaved", lambda x, weights, call, between: {f: 1.0 + (f == gs.Dense()) for f in weights}
    )
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 1).eval()
    gs.sparsify_(model, "75%")
    x = torch.randn(2, 6, 32)
    expected = model(x)
    report = gs.pack_(model, x, quiet=True)
    assert not report.skipped
    assert {row.tokens for row in report.layers} == {(12,)}
    with gs.fallback("error"):
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
