"""The layers of a model: what they hold, how they are measured, and which kernel runs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.io.write import state_of
from gossamer.report.layers import LayerFacts, Timed, facts, weights_in, weights_of


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def fact(**changes):
    fields = {
        "model": "", "name": "fc.weight", "shape": (4, 8), "pattern": "2:4", "format": "CSR()", "sparsity": 0.5,
        "kept": 16, "bytes": 100, "dense_bytes": 128, "kernel": "linear", "why": "native", "times": (),
    }  # fmt: skip
    return LayerFacts(**{**fields, **changes})


def test_operations_and_bytes_by_hand():
    x = fact()
    assert x.size == 32 and x.flops(10) == 320 and x.flops(10, dense=True) == 640
    assert x.intensity(10) == 320 / (100 + 10 * (4 + 8) * 4)  # weight, inputs and outputs of 4 bytes
    assert x.intensity(10, dense=True) == 640 / (128 + 480)
    assert fact(shape=(4, 2, 2, 2)).intensity(10) == x.intensity(10)  # a convolution has 8 inputs a place
    assert fact(shape=(0, 8), kept=0, bytes=0, dense_bytes=0).intensity(1) == 0
    assert Timed("1 token", 1, dense_us=30.0, us=20.0).gain == 1.5


def test_cases_of_a_model_by_hand():
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Conv1d(1, 2, 3), nn.Embedding(5, 4))
    found = {w.name: w for w in weights_of(model, [1, 2000])}
    assert list(found) == ["0.weight", "2.weight"]  # layers; a norm and an embedding only if they are sparse
    assert found["0.weight"].cases == (("1 token", 1, (1, 6)), ("2,000 tokens", 2000, (2000, 6)))
    assert found["2.weight"].cases == ()
    gs.nn.all_weights(model)["3.weight"].become(torch.ones(5, 4), torch.eye(5, 4).bool(), gs.CSR())
    assert "3.weight" in {w.name for w in weights_of(model, [1])}


def test_cases_of_named_tensors():
    tensors = {
        "fc": torch.ones(4, 6), "embed.fc": torch.ones(4, 6), "bias": torch.ones(4), "ids": torch.ones(4, 6).long(),
        "conv": torch.ones(2, 2, 3, 3), "sparse": gs.from_dense(torch.eye(4), gs.CSR()),
    }  # fmt: skip
    found = {w.name: w.cases for w in weights_in(tensors, [8])}
    case = ("8 tokens", 8)
    assert found == {"fc": ((*case, (8, 6)),), "embed.fc": (), "conv": (), "sparse": ((*case, (8, 4)),)}


def test_what_is_said_of_a_weight_by_hand():
    w = torch.zeros(4, 8)
    w[[0, 0, 1, 1, 2, 2, 3, 3], [0, 4, 1, 5, 2, 6, 3, 7]] = 1
    (weight,) = weights_in({"fc": gs.from_dense(w, gs.CSR())}, [1])
    x = facts(weight, "mine", seconds=0, drawn=False)
    assert (x.model, x.name, x.shape, x.pattern, x.format) == ("mine", "fc", (4, 8), "1:4", "CSR()")
    assert (x.sparsity, x.kept, x.dense_bytes, x.times, x.mask) == (0.75, 8, 128, (), None)
    assert facts(weight, "", seconds=0, drawn=True).mask.shape == (4, 8)
    (weight,) = weights_in({"fc": torch.ones(4, 8)}, [1])
    x = facts(weight, "", seconds=0, drawn=True)
    assert (x.pattern, x.format, x.kept, x.bytes, x.mask) == ("dense", "Dense()", 32, 128, None)
    assert (x.kernel, x.why) == ("torch", "the weight is dense")


def test_a_dense_weight_counts_all_its_values_even_if_many_are_zero():
    (weight,) = weights_in({"fc": torch.eye(8)}, [1])
    x = facts(weight, "", seconds=0, drawn=False)
    assert x.sparsity == 0.875 and x.kept == 64 and x.pattern != "dense"


@pytest.mark.parametrize(
    ("shape", "what"), [((4, 8), F.linear), ((4, 2, 3, 3), F.conv2d), ((4, 2, 3), None)], ids=["linear", "2d", "1d"]
)
def test_the_kernel_is_what_explain_says(shape, what):
    value = gs.sparsify(torch.randn(shape), "50%", format=gs.CSR())
    (weight,) = weights_in({"w": value}, [1])
    x = facts(weight, "", seconds=0, drawn=False)
    if what is None:
        assert x.kernel == "by the operator" and "3 dimensions" in x.why
    else:
        given = torch.ones(1, shape[1], *((8, 8) if len(shape) == 4 else ()))
        said = gs.explain(what, given, value)
        assert x.kernel == said.function.removeprefix("gossamer.") and said.why in x.why


def test_layers_say_pattern_format_bytes_times_kernel_and_why(tmp_path):
    model = gs.sparsify_(network(), {"0": "2:4", "2": None}, format=gs.CSR())
    before = [p.detach().to_dense().clone() for p in model.parameters()]
    found = gs.report(model, tmp_path / "page.html", tokens=[1, 8], accuracy=0.9)
    sparse, dense = found.layers
    assert (sparse.name, sparse.pattern, sparse.format, sparse.sparsity) == ("0.weight", "2:4", "CSR()", 0.5)
    assert (sparse.bytes, sparse.dense_bytes) == (model[0].weight.nbytes, 64 * 128 * 4)
    assert sparse.kernel == gs.explain(nn.functional.linear, torch.ones(1, 64), model[0].weight).function.removeprefix(
        "gossamer."
    )
    assert "native" in sparse.why
    assert [t.case for t in sparse.times] == ["1 token", "8 tokens"]
    assert all(t.us > 0 and t.dense_us > 0 for t in sparse.times)
    assert (dense.pattern, dense.kernel, dense.times[0].gain) == ("dense", "torch", 1.0)
    assert found.points == (("Sequential, by gossamer", pytest.approx(0.5 * 8192 / (8192 + 1280)), 0.9),)
    page = (tmp_path / "page.html").read_text()
    for text in ("0.weight", "128 x 64", "2:4", "CSR", sparse.kernel):
        assert text in page
    assert all(torch.equal(a, p.to_dense()) for a, p in zip(before, model.parameters(), strict=True))
    assert model[0].weight.format == gs.CSR()


def test_convolutions_are_measured_with_an_example():
    model = gs.sparsify_(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)), "75%")
    assert not gs.report(model, None, tokens=[1]).layers[0].times
    found = gs.report(model, None, tokens=[1], example_inputs=torch.randn(2, 4, 8, 8))
    assert [(t.case, t.tokens) for t in found.layers[0].times] == [("the example", 2 * 36)]
    assert [t.case for t in found.layers[1].times] == ["1 token", "the example"]


def test_int8_layers_are_measured_as_they_run():
    model = gs.quantize_(gs.sparsify_(network(), {"0": "90%", "2": None}, format=gs.formats.PackedCSR()))
    found = gs.report(model, None, tokens=[1])
    eight = found.layers[0]
    assert (eight.name, eight.format, eight.kernel) == ("0.weight", "PackedCSR() int8", "nn.Int8Linear")
    assert eight.dense_bytes == 64 * 128 * 4
    assert eight.times[0].us > 0
    found = gs.report(state_of(model), None, tokens=[1])
    assert not found.layers[0].times  # a file doesn't tell how its int8 values are meant


def test_zeros_of_another_tool_are_seen():
    model = network()
    with torch.no_grad():
        model[0].weight.mul_(gs.NM(1, 4).select(torch.rand(128, 64)))
    found = gs.report(model, None, measure=False)
    assert (found.layers[0].pattern, found.layers[0].format) == ("1:4", "Dense()")


def test_layers_in_eight_bits(tmp_path):
    model = gs.sparsify_(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), "2:4")
    made = gs.report(gs.quantize_(model, "int8"), tmp_path / "r.html", tokens=(1,), measure=False)
    assert [(row.name, row.pattern, row.sparsity, row.kernel) for row in made.layers] == [
        ("0.weight", "2:4", 0.5, "nn.DynamicInt8Linear"),
        ("2.weight", "2:4", 0.5, "nn.DynamicInt8Linear"),
    ]
    assert all("int8" in row.format and row.bytes < row.dense_bytes / 2 for row in made.layers)
