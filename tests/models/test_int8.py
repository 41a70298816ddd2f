"""int8 values: the kernels against what they stand for, the error against its bound, saving, gradients, compiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

import gossamer as gs
from gossamer.kernels.rows.operators import rows_of
from gossamer.models.int8 import quantize
from tests.hf.models import bert, gpt2, inputs

FORMATS = [gs.formats.PackedCSR(), gs.formats.PackedCSR(240), gs.formats.Condensed(), gs.formats.PackedNM(2, 4)]
SHAPES = [(1, 1), (5, 3), (16, 128), (17, 129), (33, 300), (400, 65), (64, 0), (0, 8)]


def layer(rows: int, cols: int, format: gs.Format, bias: bool = True) -> nn.Linear:
    made = nn.Linear(cols, rows, bias=bias)
    with torch.no_grad():
        made.weight.copy_(torch.randn(rows, cols))
    return gs.sparsify_(made, "2:4", format=format)  # type: ignore[return-value]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 8, 17, 70])
def test_product_is_that_of_its_dense_weight(format: gs.Format, shape: tuple[int, int], tokens: int) -> None:
    rows, cols = shape
    small = gs.nn.quantize_(layer(rows, cols, format))
    x = torch.randn(tokens, cols)
    exact = x.double() @ small.dense().double().t() + small.bias.double()
    size = x.double().abs() @ small.dense().double().abs().t() + small.bias.double().abs()
    assert bool(((small(x) - exact).abs() <= (cols + 4) * 2**-24 * size).all())


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_error_is_within_its_bound(format: gs.Format) -> None:
    big = layer(64, 256, format)
    small = gs.nn.quantize_(big)
    x = torch.randn(32, 256)
    moved = (small(x).double() - big(x).double()).detach().abs()
    bound = x.double().abs() @ big.weight.mask().double().t() * (small.scale.double() / 2)
    assert bool((moved <= bound * 1.001 + 1e-5).all())
    assert float(moved.max()) > 0.01 * float(bound.max())  # and the bound says something
    assert torch.equal(small.weight.mask(), big.weight.mask())


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_bytes(format: gs.Format) -> None:
    big = gs.sparsify_(nn.Linear(1024, 1024, bias=False), "2:4", format=format).weight
    small = quantize(big.detach())
    saved = big.nbytes / (small.weight.nbytes + small.scale.nbytes)
    assert saved > 2.3  # 5 bytes a value become 2


def test_scales_and_zero_rows() -> None:
    dense = torch.tensor([[0.0, 0.0, 0.0], [1.27, 0.0, -0.64], [1e-30, 0.0, 0.0]])
    small = quantize(gs.from_dense(dense, gs.formats.PackedCSR()))
    assert small.weight.to_dense().tolist() == [[0, 0, 0], [127, 0, -64], [127, 0, 0]]
    torch.testing.assert_close(small.scale, torch.tensor([1.0, 0.01, 1e-30 / 127]))


def test_half_precision_and_batches() -> None:
    small = gs.nn.quantize_(layer(32, 64, gs.formats.PackedCSR()))
    x = torch.randn(2, 3, 64)
    assert small(x).shape == (2, 3, 32)
    torch.testing.assert_close(small.bfloat16()(x.bfloat16()).float(), small.float()(x), rtol=0.05, atol=0.05)
    assert small(x[0, 0]).shape == (32,)


def test_gradients_go_through() -> None:
    small = gs.nn.quantize_(layer(12, 20, gs.formats.PackedCSR()))
    x = torch.randn(5, 20, requires_grad=True)
    (small(x) * torch.arange(12.0)).sum().backward()
    torch.testing.assert_close(x.grad, torch.arange(12.0).expand(5, 12) @ small.dense())
    torch.testing.assert_close(small.bias.grad, torch.arange(12.0) * 5)
    assert small.weight.grad is None and not small.weight.requires_grad


def test_operator_passes_torchs_own_checks() -> None:
    small = quantize(layer(12, 20, gs.formats.PackedCSR()).weight.detach())
    arrays, sizes = rows_of(small.weight.structure)
    x, bias = torch.randn(5, 20, requires_grad=True), torch.randn(12)
    torch.library.opcheck(
        torch.ops.gossamer.rows_int8.default, (*arrays, small.weight._values, small.scale, x, bias, *sizes, 0)
    )


def test_operands_are_checked() -> None:
    small = quantize(layer(12, 20, gs.formats.PackedCSR()).weight.detach())
    (row, pos, crd), sizes = rows_of(small.weight.structure)
    values, x = small.weight._values, torch.randn(5, 20)
    for bad in ((values[:-1], small.scale, x), (values, small.scale[:-1], x), (values.float(), small.scale, x)):
        with pytest.raises(RuntimeError, match="must be"):
            torch.ops.gossamer.rows_int8(row, pos, crd, *bad, None, *sizes, 0)


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
    return gs.sparsify_(model, {"0": "90%", "2": "2:4"}, format=gs.formats.PackedCSR())  # type: ignore[return-value]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_in_one_graph(backend: str) -> None:
    torch._dynamo.reset()
    model, x = gs.nn.quantize_(network()), torch.randn(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend=backend)(x), model(x))


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    model, x = gs.quantize_(network()), torch.randn(5, 64)
    gs.save(model, path)
    with torch.device("meta"):
        fresh = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
    assert torch.equal(gs.load(fresh, path)(x), model(x))
    rows = {row.name: row for row in gs.io.inspect(path)}
    assert (rows["0.weight"].dtype, rows["0.scale"].shape) == ("int8", (96,))
    wrong = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 9))
    with pytest.raises(ValueError, match=r"2.weight.* is \(9, 96\) in the model"):
        gs.load(wrong, path)
    assert type(wrong[0]) is nn.Linear  # as it was


@pytest.mark.parametrize("make", [bert, gpt2])
def test_transformers_models(make: Any, tmp_path: Path) -> None:
    model = make().eval()
    turned = make is gpt2
    packed = gs.formats.PackedCSR()
    gs.sparsify_(model, "75%", format=packed.turned() if turned else packed)
    given = inputs(model)
    with torch.no_grad():
        before = model(**given).logits
        gs.quantize_(model)
        after = model(**given).logits
    assert float((after - before).abs().max()) < 0.02 * float(before.abs().max())
    model.save_pretrained(tmp_path)
    auto = tf.AutoModelForCausalLM if turned else tf.AutoModelForSequenceClassification
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert torch.equal(loaded(**given).logits, after)
    again = auto.from_pretrained(tmp_path)
    gs.densify_(again).save_pretrained(tmp_path / "dense")
    with torch.no_grad():
        dense = auto.from_pretrained(tmp_path / "dense")
        torch.testing.assert_close(dense(**given).logits, after, rtol=1e-4, atol=1e-5)
    base = tf.AutoModel.from_pretrained(tmp_path)
    ours = model.base_model
    assert torch.equal(base(**given).last_hidden_state, ours(**given).last_hidden_state)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="has no packed linear layer"):
        gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(8, 8)), "50%"))
    with pytest.raises(TypeError, match=r"not one in CSR\(\)"):
        quantize(gs.from_dense(torch.eye(4), gs.CSR()))
    with pytest.raises(ValueError, match="not finite"):
        quantize(gs.from_dense(torch.tensor([[float("nan"), 0.0]]), gs.formats.PackedCSR()))


def test_float_weights_are_not_loaded_as_int8() -> None:
    model, x = gs.quantize_(network()), torch.randn(5, 64)
    before = model(x)
    with pytest.raises(ValueError, match=r"0\.weight is torch\.int8 in the model and torch\.float32 in the file"):
        model.load_state_dict(network().state_dict(), strict=False)
    assert torch.equal(model(x), before)


def test_dense_again() -> None:
    model, x = gs.quantize_(network()), torch.randn(5, 64)
    expected = model(x)
    gs.densify_(model)
    assert type(model[0]) is nn.Linear and not gs.nn.sparse_parameters(model)
    torch.testing.assert_close(model(x), expected)
    assert type(gs.densify_(gs.quantize_(layer(8, 8, gs.formats.PackedCSR())))) is nn.Linear


def test_where() -> None:
    model = gs.quantize_(network(), where="0")
    assert isinstance(model[0], gs.nn.Int8Linear) and not isinstance(model[2], gs.nn.Int8Linear)


def test_without_kernels() -> None:
    small = gs.nn.quantize_(layer(32, 64, gs.formats.PackedCSR()))
    x = torch.randn(3, 64)
    expected = small(x)
    small.kernels = False
    torch.testing.assert_close(small(x), expected)
