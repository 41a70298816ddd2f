"""Layers in eight bits: which layers become one, the error against its bound, pack_, saving, compiling, exporting."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn
from torch.autograd import forward_ad

import gossamer as gs
from gossamer import native
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.weight import rounded
from gossamer.models.dynamic_int8 import DynamicInt8Linear
from gossamer.models.int8_conv import DynamicInt8Conv
from gossamer.models.pack import tune
from tests.hf.models import bert, gpt2, inputs

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")


def network(how: str | None = "block 1x4 75%") -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
    return model if how is None else gs.sparsify_(model, {"0": how, "*": None})  # type: ignore[return-value]


@pytest.mark.parametrize("how", [None, "75%", "2:4", "block 1x4 75%", "block 4x4 75%"])
@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR(), gs.formats.PackedCSR()], ids=str)
def test_error_is_within_its_bound(how: str | None, format: gs.Format) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(128, 64)
    if how is not None:
        gs.sparsify_(layer, how, format=format)
    x = torch.randn(9, 128)
    with torch.no_grad():
        exact = layer(x).double()
        weight = (layer.weight.to_dense() if how else layer.weight).double().abs()
        mask = (weight != 0).double()
        small = gs.quantize_(nn.Sequential(layer), "int8")[0]
        moved = (small(x).double() - exact).abs()
    s = weight.amax(1) / 127
    t = (x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)).double()[:, None] / 254
    bound = (x.double().abs() @ mask.t()) * s / 2 + t / 2 * weight.sum(1) + mask.sum(1) * s * t / 4
    assert bool((moved <= bound * 1.001).all())
    assert float(moved.max()) > 0.01 * float(bound.max())  # and the bound says something


def test_which_layers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
            self.head.weight = self.embed.weight
            self.one, self.conv = nn.Linear(8, 8), nn.Conv1d(8, 8, 1)
            self.again = self.one  # the same module by another name
            self.tied = nn.Linear(8, 8)
            self.tied.weight = self.one.weight

    model = gs.quantize_(Model(), "int8")
    assert type(model.head) is nn.Linear and isinstance(model.conv, DynamicInt8Conv)
    assert isinstance(model.one, DynamicInt8Linear) and model.again is model.one
    assert model.tied.packed is model.one.packed and model.tied.bias is not model.one.bias
    only = gs.quantize_(network(), "int8", where="0*")
    assert isinstance(only[0], DynamicInt8Linear) and type(only[2]) is nn.Linear
    assert isinstance(gs.quantize_(nn.Linear(4, 4), "int8"), DynamicInt8Linear)
    with pytest.raises(ValueError, match="has no linear layer"):
        gs.quantize_(nn.Sequential(nn.ReLU()), "int8")
    with pytest.raises(ValueError, match="must be 'int8 weights', 'int8', 'fp8' or 'int4'"):
        gs.quantize_(network(), "int3")  # type: ignore[arg-type]


def test_pack_measures_layouts_and_keeps_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "SECONDS", 0.001)
    monkeypatch.setattr(native, "cache_dir", lambda: tmp_path)
    model, x = gs.quantize_(network(), "int8"), torch.randn(3, 5, 64)
    before = model(x)
    report = gs.pack_(model, x)
    assert [row.name for row in report.layers] == ["0", "2"] and [row.tokens for row in report.layers] == [(15,), (15,)]
    assert torch.equal(model(x), before)
    assert report.layers[0].format == str(model[0].layout) and report.layers[1].format == "int8 dense"
    assert 0.7 < report.layers[0].sparsity < 0.8 and report.layers[0].bytes == model[0].packed.numel()
    again = gs.pack_(model, x)  # known by now
    assert [row.us for row in again.layers] == [row.us for row in report.layers]
    monkeypatch.setattr(native, "int8_isa", lambda: "avx512vnni")  # with AMX it is a bitmap
    guessed = gs.pack_(model, tune=False)
    assert guessed.layers[0].format == "int8 lookup 1x4" and guessed.layers[0].tokens == (1, 16, 128)


@pytest.mark.parametrize("layout", [Layout("dense"), Layout("lookup"), Layout("lines", 1, 4)], ids=str)
def test_copied_saved_and_loaded(layout: Layout) -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(5, 64)
    model[0].repack(layout)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), expected)
    other = gs.quantize_(network(None), "int8")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), expected)
    bad = model.state_dict() | {"0.packed": torch.zeros(999, dtype=torch.uint8)}
    with pytest.raises(ValueError, match="no int8 weight"):
        other.load_state_dict(bad)
    with pytest.raises(ValueError, match="8 x 96, and that of the layer 96 x 64"):
        other.load_state_dict(model.state_dict() | {"0.packed": model[2].packed})


def test_file_of_gs_save(tmp_path: Path) -> None:
    model, x, path = gs.quantize_(network(), "int8", where="0*"), torch.randn(5, 64), tmp_path / "small.safetensors"
    gs.save(model, path)
    with torch.device("meta"):
        fresh = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
    assert torch.equal(gs.load(fresh, path)(x), model(x))
    assert torch.equal(gs.load(network(None), path)(x), model(x))
    wrong = nn.Sequential(nn.Linear(64, 97), nn.GELU(), nn.Linear(96, 8))
    with pytest.raises(ValueError, match="97"):
        gs.load(wrong, path)
    assert type(wrong[0]) is nn.Linear  # as it was


@pytest.mark.parametrize("make", [bert, gpt2])
def test_transformers_models(make: Any, tmp_path: Path) -> None:
    model = make().eval()
    gs.sparsify_(model, "50%")
    given = inputs(model)
    with torch.no_grad():
        before = model(**given).logits
        gs.quantize_(model, "int8")
        after = model(**given).logits
    assert 0 < float((after - before).abs().max()) < 0.05 * float(before.abs().max())
    model.save_pretrained(tmp_path)
    auto = tf.AutoModelForCausalLM if make is gpt2 else tf.AutoModelForSequenceClassification
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert torch.equal(loaded(**given).logits, after)
    base = tf.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base(**given).last_hidden_state, model.base_model(**given).last_hidden_state)
    gs.densify_(loaded).save_pretrained(tmp_path / "dense")
    with torch.no_grad():
        dense = auto.from_pretrained(tmp_path / "dense")(**given).logits
    assert float((dense - after).abs().max()) < 0.05 * float(before.abs().max())


def test_summary_and_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "int8_isa", lambda: "avx512vnni")  # with AMX it is a bitmap
    model = gs.quantize_(network("75%"), "int8")
    rows = {row.name: row for row in gs.summary(model).rows}
    first, last = rows["0.packed"], rows["2.packed"]
    assert (first.shape, first.format, first.density) == ((96, 64), "int8 lookup", 0.25)
    assert (last.format, last.density, last.dense_bytes) == ("int8 dense", 1.0, 4 * 96 * 8)
    assert gs.count_flops(model, torch.randn(10, 64)).layers == {"0": (30720, 122880), "2": (15360, 15360)}


def test_dense_again() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(5, 64)
    expected = model(x)
    gs.densify_(model)
    assert type(model[0]) is nn.Linear and model[0].bias is not None
    torch.testing.assert_close(model(x), expected, rtol=0.05, atol=0.05)  # x is not rounded any more


@pytest.mark.parametrize("how", ["int8", "fp8", "int8 weights"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dense_again_in_the_type_that_it_had(how: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    def dense() -> nn.Sequential:
        return nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4, bias=False)).to(dtype)

    model, x = gs.sparsify_(dense(), "50%", format=gs.formats.PackedCSR()), torch.randn(3, 16, dtype=dtype)
    gs.save(gs.quantize_(model, how), tmp_path / "small")
    for made in (gs.load(dense(), tmp_path / "small"), model):
        gs.densify_(made)
        assert [weight.dtype for weight in made.parameters()] == [dtype] * 3 and made(x).dtype is dtype
        assert all(weight.requires_grad for weight in made.parameters())  # training goes on with all of them
    other = gs.load(dense().half(), tmp_path / "small")  # tensors get the type of the model, as always
    assert gs.densify_(other)(x.half()).dtype is torch.float16
    small = gs.quantize_(gs.sparsify_(dense(), "50%", format=gs.formats.PackedCSR()), how).double()
    assert gs.densify_(small)(x.double()).dtype is torch.float64


def test_bytes_that_begin_anywhere_are_copied() -> None:
    """A file that is mapped into memory may have other tensors of any number of bytes before a weight."""
    model, x = gs.quantize_(network(), "int8"), torch.randn(3, 64)
    state = model.state_dict()
    moved = torch.empty(state["0.packed"].numel() + 1, dtype=torch.uint8)[1:].copy_(state["0.packed"])
    other = gs.quantize_(network(), "int8")
    other.load_state_dict({**state, "0.packed": moved}, assign=True)
    assert torch.equal(other(x), model(x))


def test_a_model_with_stored_and_int8_weights_is_loaded(tmp_path: Path) -> None:
    model = bert().eval()
    gs.sparsify_(model, "50%", where="*query*", format=gs.CSR())
    gs.quantize_(model, "int8", where=["*key*", "*value*"])
    given = inputs(model)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        loaded = type(model).from_pretrained(tmp_path)(**given).logits
        torch.testing.assert_close(loaded, model(**given).logits)


def test_without_kernels_and_in_half_precision() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(3, 64)
    expected = model(x)
    torch.testing.assert_close(model.bfloat16()(x.bfloat16()).float(), expected, rtol=0.05, atol=0.05)
    model.float()[0].kernels = False
    torch.testing.assert_close(model(x), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_in_one_graph(backend: str) -> None:
    torch._dynamo.reset()
    model, x = gs.quantize_(network(), "int8"), torch.randn(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend=backend)(x), model(x))


def test_exports() -> None:
    model, x = gs.quantize_(network(), "int8").eval(), torch.randn(5, 64)
    tokens = torch.export.Dim("tokens", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: tokens},))
        other = torch.randn(9, 64)
        torch.testing.assert_close(program.module()(other), model(other))


def test_the_fast_path_of_torch_calls_quantized_layers() -> None:
    for activation, code in (("relu", 1), ("gelu", 2), (nn.GELU(), 2), (torch.tanh, 0)):
        layer = nn.TransformerEncoderLayer(16, 2, 32, activation=activation, batch_first=True).eval()  # type: ignore[arg-type]
        called: list[int] = []
        layer.linear1.register_forward_hook(lambda *_, called=called: called.append(1))
        gs.quantize_(layer, "int8")
        with torch.no_grad():
            layer(torch.randn(2, 5, 16))  # which reads linear1.weight on its fast path
        assert called and layer.activation_relu_or_gelu == 0
        assert gs.densify_(layer).activation_relu_or_gelu == code


def test_padded_batches_of_an_encoder_with_quantized_layers() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = gs.quantize_(copy.deepcopy(model), "int8")(x)[0]
        out = gs.quantize_(model, "int8")(x, src_key_padding_mask=padding)  # dense: a nested tensor
        torch.testing.assert_close(out[0], expected)
        assert not model.use_nested_tensor and gs.densify_(model).use_nested_tensor


def test_a_module_that_reads_the_weight_is_traced() -> None:
    class Reads(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, model.inner.weight) + super().forward(x)

    torch._dynamo.reset()
    model, x = Reads(16, 16).eval(), torch.randn(2, 16)
    model.inner = nn.Linear(16, 16)
    gs.quantize_(model, "int8", where="inner")
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected, rtol=0.05, atol=0.05)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected, rtol=0.05, atol=0.05)


def test_gradients_go_through() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(5, 64, requires_grad=True)
    model(x).sum().backward()
    dense = copy.deepcopy(gs.densify_(model))
    y = x.detach().clone().requires_grad_()
    dense(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("how", ["int8", "fp8", "int8 weights"])
def test_derivatives_of_torch_func_are_those_of_the_dense_layer(how: Any) -> None:
    layer = gs.quantize_(gs.sparsify_(nn.Linear(8, 4), "50%", format=gs.formats.PackedCSR()), how)
    dense, x, t = gs.densify_(copy.deepcopy(layer)), torch.randn(3, 8), torch.randn(3, 8)
    for derive in (torch.func.jacfwd, torch.func.jacrev):
        torch.testing.assert_close(derive(layer)(x), derive(dense)(x))
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (t,)), torch.func.jvp(dense, (x,), (t,)))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, t))).tangent
    torch.testing.assert_close(tangent, t @ dense.weight.t())


@pytest.mark.parametrize("how", ["int8", "fp8", "int8 weights"])
def test_inputs_that_are_refused(how: Any) -> None:
    layer = gs.quantize_(gs.sparsify_(nn.Linear(8, 4), "50%", format=gs.formats.PackedCSR()), how)
    for wrong in (torch.ones(2, 7), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="its last dimension must be 8"):
            layer(wrong)
    for kind in (torch.int64, torch.complex64, torch.bool):
        with pytest.raises(TypeError, match=f"x is {kind}"):
            layer(torch.ones(2, 8, dtype=kind))


def test_weights_that_are_not_finite_are_named() -> None:
    model = network(None)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"2\.weight: the weight has values that are not finite"):
        gs.quantize_(model, "int8")
    with pytest.raises(ValueError, match=r"'2\.weight': Unstructured can't rank NaN: 1 of 768 scores"):
        gs.sparsify_(model, "50%")


HARD = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "zeros": 0.0,
    "subnormal": 1e-42,
    "largest": torch.finfo(torch.float32).max,
}


@pytest.mark.parametrize("how", ["50%", "2:4", "1:10", "block 1x4 75%", "block 4x1 75%", "block 4x4 75%"])
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_hard_values_touch_their_own_token_only(how: str, tokens: int) -> None:
    layer = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(39, 21)), how), "int8")[0]
    x = torch.randn(tokens + 2, 39)
    with torch.no_grad():
        expected = layer(x)
        for name, value in HARD.items():
            hard = x.clone()
            hard[1] = 0.0 if name in ("zeros", "subnormal") else hard[1]
            hard[1, 17] = value
            out = layer(hard)
            assert torch.equal(out[0], expected[0]) and torch.equal(out[2:], expected[2:]), name
            if name in ("nan", "infinity", "minus infinity"):
                assert out[1].isnan().all()
            elif name in ("zeros", "subnormal"):
                torch.testing.assert_close(out[1], layer.bias)
            else:
                assert not out[1].isnan().any()


@pytest.mark.parametrize("rows, cols", [(0, 8), (8, 0), (1, 1), (5, 3)])
def test_sizes_that_fill_no_vector(rows: int, cols: int) -> None:
    layer = DynamicInt8Linear(pack_as(rounded(torch.ones(rows, cols)), torch.ones(rows, cols) > 0, Layout("dense")),
                              nn.Parameter(torch.full((rows,), 2.0)), (rows, cols))  # fmt: skip
    with torch.no_grad():
        for shape in ((cols,), (0, cols), (2, 0, cols), (3, cols)):
            out = layer(torch.ones(shape))
            torch.testing.assert_close(out, torch.full((*shape[:-1], rows), 2.0 + cols))


@pytest.mark.parametrize("grad", [True, False])
def test_other_inputs_are_refused_in_words(grad: bool) -> None:
    layer = gs.quantize_(nn.Sequential(nn.Linear(36, 20)), "int8")[0]
    with torch.set_grad_enabled(grad):
        with pytest.raises(ValueError, match=r"x has shape \(2, 35\); its last dimension must be 36"):
            layer(torch.ones(2, 35))
        with pytest.raises(ValueError, match=r"x has shape \(\)"):
            layer(torch.tensor(1.0))
        with pytest.raises(TypeError, match=r"x is torch\.int64"):
            layer(torch.ones(2, 36, dtype=torch.int64))
