"""Experts on a GPU: the kernel against float64, and models that are packed, compiled and captured."""

import copy

import pytest
import torch

import gossamer as gs
from gossamer.kernels.vnm import experts, experts_eight
from gossamer.models.quantized_experts import QuantizedExperts
from tests.kernels.vnm import test_experts_eight as eight
from tests.kernels.vnm.test_experts import check, operands
from tests.models.test_grouped import experts as model_of
from tests.models.test_grouped import packed
from tests.models.test_quantized_experts import pattern

pytestmark = pytest.mark.gpu


def moved(given):
    return tuple(part.cuda() if isinstance(part, torch.Tensor) else part for part in given)


COUNTS = pytest.mark.parametrize(
    ("counts", "rows", "cols"),
    [
        ((1, 0, 1, 0), 1024, 512), ((3, 0, 20, 9, 1), 192, 72), ((0,) * 33 + (5,) + (0,) * 90 + (1, 2), 768, 2048),
        ((200, 0, 311, 77), 2048, 1024), ((2048, 5), 640, 4096), ((17,) * 16, 64, 64),
    ],
)  # fmt: skip


@COUNTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_against_exact_numbers(counts, rows, cols, dtype):
    dense, given = operands(counts, rows, cols, dtype, biased=rows == 192, behind=3)
    out = torch.ops.gossamer.vnm_experts(*moved(given))
    check(out.cpu(), dense, given)
    again = torch.ops.gossamer.vnm_experts(*moved(given))  # by the library that launches without Python
    used = sum(counts)
    assert torch.equal(out[:used], again[:used]) and experts.takes(out, out, rows, cols) is None


@COUNTS
@pytest.mark.parametrize("numbers", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_8_bits_against_exact_numbers(counts, rows, cols, dtype, numbers):
    cols += dtype is torch.float16  # an odd number of columns
    weight, given = eight.operands(counts, rows, cols, dtype, numbers, rows == 192, behind=3)
    out = torch.ops.gossamer.vnm_experts_8bit(*moved(given))
    lost = 2.0**-24 if numbers is torch.int8 else 2.0**-9 / cols  # e4m3 tensor cores keep 14 bits of a sum
    eight.check(out.cpu(), weight, given, max(lost, 2.0**-24))
    again = torch.ops.gossamer.vnm_experts_8bit(*moved(given))  # by the library that launches without Python
    used = sum(counts)
    assert torch.equal(out[:used], again[:used]) and experts_eight.takes(given[0].cuda(), out, cols) is None
    wrong = torch.tensor([-5, 2**31 - 1] * len(counts), dtype=torch.int32)[: len(counts)]
    assert torch.ops.gossamer.vnm_experts_8bit(*moved((*given[:5], wrong, *given[6:]))).shape == out.shape
    torch.cuda.synchronize()


@pytest.mark.parametrize("m", [4, 8])
@pytest.mark.parametrize("tokens", [1, 9, 300])
def test_models(tokens, m):
    model = model_of(count=8, width=256, inner=512, layers=2).to("cuda", torch.bfloat16)
    dense, ids = packed(model, m), torch.randint(32, (1, tokens), device="cuda")
    with torch.no_grad():
        expected, eager = dense(ids).logits, model(ids).logits
        close(eager, expected)
        torch._dynamo.reset()
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        for _ in range(3):
            close_but_for_level_experts(compiled(ids).logits, expected)
        module, x = model.model.layers[0].mlp.experts, torch.randn(tokens, 256, device="cuda").bfloat16()
        index = torch.rand(tokens, 8, device="cuda").topk(2, 1).indices
        shares = torch.rand(tokens, 2, device="cuda")
        module(x, index, shares)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = module(x, index, shares)
        for _ in range(3):  # other tokens, and other experts for them
            x.normal_()
            index.copy_(torch.rand(tokens, 8, device="cuda").topk(2, 1).indices)
            graph.replay()
            close(held, module(x, index, shares))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=5e-2, atol=2e-2 * float(b.abs().max()))


def nearly(a, b):
    """What lies between two products in eight bits may be rounded to a neighbour: 2 % of the result on a CPU."""
    assert bool(torch.isfinite(a).all()) and float((a.float() - b.float()).norm() / b.float().norm()) < 0.06


def close_but_for_level_experts(a, b):
    """A compiled router rounds less often: a token whose experts are nearly level may go to another one, and tokens
    behind it see that by attention. Most tokens are close."""
    worst = (a - b).abs().amax(-1).view(-1) / b.abs().max()
    assert bool(torch.isfinite(a).all()) and float(worst.float().median()) < 0.1


@pytest.mark.parametrize("how", ["2:4", "all:2:8"])
def test_pack(how):
    model = model_of(count=4, width=256, inner=512).to("cuda", torch.bfloat16)
    gs.sparsify_(model, {"*experts*": how, "*": None})
    dense, ids = copy.deepcopy(model), torch.randint(32, (2, 16), device="cuda")
    with torch.no_grad():
        expected = dense(ids).logits
        report = gs.pack_(model, {"input_ids": ids})
        close(model(ids).logits, expected)
    assert {layer.name.rpartition(".")[2] for layer in report.layers} == {"gate_up_proj", "down_proj"}
    assert all(layer.format in ("Masked()", *usual(how)) for layer in report.layers)


def usual(how):
    if how == "2:4":
        return ("Stacked(PackedVNM('all', 2, 4))",)
    return ("Stacked(PackedVNM(1024, 2, 8))", "Stacked(PackedVNM(256, 2, 8))")


def small_of(m, how="fp8"):
    """A model with experts in 8 bits, on the GPU."""
    model = pattern(model_of(count=8, width=256, inner=512, layers=2), m).to("cuda", torch.bfloat16)
    return gs.quantize_(model, how, where="*experts*")


@pytest.mark.parametrize("how", ["fp8", "int8"])
@pytest.mark.parametrize("m", [4, 8])
@pytest.mark.parametrize("tokens", [1, 9, 300])
@torch.no_grad()
def test_models_in_8_bits(tokens, m, how):
    model = small_of(m, how)
    module = model.model.layers[0].mlp.experts
    assert isinstance(module, QuantizedExperts) and gs.explain(module).function == "vnm_experts_8bit"
    x = torch.randn(tokens, 256, device="cuda").bfloat16()
    index, shares = torch.rand(tokens, 8, device="cuda").topk(2, 1).indices, torch.rand(tokens, 2, device="cuda")
    on_a_cpu = copy.deepcopy(module).cpu()
    nearly(module(x, index, shares).cpu(), on_a_cpu(x.cpu(), index.cpu(), shares.cpu()))
    nearly(module(x.float(), index, shares), module(x, index, shares))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = module(x, index, shares)
    for _ in range(3):  # other tokens, and other experts for them
        x.normal_()
        index.copy_(torch.rand(tokens, 8, device="cuda").topk(2, 1).indices)
        graph.replay()
        close(held, module(x, index, shares))
    ids = torch.randint(32, (1, tokens), device="cuda")
    expected = model(ids).logits
    torch._dynamo.reset()
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):
        close_but_for_level_experts(compiled(ids).logits, expected)


@torch.no_grad()
def test_8_bits_in_files_and_pack(tmp_path):
    model, ids = small_of(8), torch.randint(32, (2, 16), device="cuda")
    expected = model(ids).logits
    skipped = dict(gs.pack_(model, {"input_ids": ids}, quiet=True).skipped)
    assert "no other layout" in skipped["model.layers.1.mlp.experts.down_proj"]
    assert torch.equal(model(ids).logits, expected)
    gs.save(model, tmp_path / "small.safetensors")
    again = model_of(count=8, width=256, inner=512, layers=2).to("cuda", torch.bfloat16)
    assert torch.equal(gs.load(again, tmp_path / "small.safetensors")(ids).logits, expected)
    out = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert out.shape == (2, 20)
