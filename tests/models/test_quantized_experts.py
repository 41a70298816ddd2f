"""Experts in 8 bits: against their definition; in copies, files, other types and traces."""

from __future__ import annotations

import copy
import inspect
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.kernels.quantized import stack
from gossamer.kernels.vnm import experts_eight
from gossamer.kernels.vnm.eight import quantize
from gossamer.models.quantize_experts import experts_weights
from gossamer.models.quantized_experts import QuantizedExperts, quantized_weights
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate
from tests.models.test_grouped import experts, packed

t = pytest.importorskip("transformers")
moe = pytest.importorskip("transformers.integrations.moe")


_NORMS = "has_post_expert_norm" in inspect.signature(moe.use_experts_implementation).parameters  # new in transformers


@moe.use_experts_implementation(has_bias=True, **({"has_post_expert_norm": True} if _NORMS else {}))
class OtherExperts(nn.Module):
    """With all that classes of transformers have: biases, a gate of their own, a norm behind each expert."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_experts, self.limit, self.act_fn = config.experts, 2.0, nn.SiLU()
        self.gate_up_proj = nn.Parameter(torch.randn(config.experts, 2 * config.inner, config.width) / 8)
        self.gate_up_proj_bias = nn.Parameter(torch.randn(config.experts, 2 * config.inner))
        self.down_proj = nn.Parameter(torch.randn(config.experts, config.width, config.inner) / 8)
        self.down_proj_bias = nn.Parameter(torch.randn(config.experts, config.width))
        self.post_expert_norm = nn.LayerNorm(config.width)

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.clamp(-self.limit, self.limit).chunk(2, dim=-1)
        return self.act_fn(gate) * (up + 1)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        out = torch.zeros_like(hidden_states)
        for expert in range(self.num_experts):
            token, place = torch.where(top_k_index == expert)
            up = nn.functional.linear(hidden_states[token], self.gate_up_proj[expert], self.gate_up_proj_bias[expert])
            down = nn.functional.linear(self._apply_gate(up), self.down_proj[expert], self.down_proj_bias[expert])
            out.index_add_(0, token, self.post_expert_norm(down) * top_k_weights[token, place, None])
        return out


def pattern(module: nn.Module, m: int) -> nn.Module:
    """Mask all experts: 2 of every m columns, four of them shared by the rows of an expert."""
    for weight in experts_weights(module).values():
        keep = torch.stack([gs.VNM("all", 2, m).select(one) for one in weight.dense().abs()])
        weight.become(weight.dense() * keep, keep, gs.Masked())
    return module


def other(m: int, count: int = 4) -> Any:
    torch.manual_seed(0)
    config = SimpleNamespace(experts=count, inner=128, width=64, _experts_implementation="eager")
    return gs.quantize_(pattern(OtherExperts(config), m), "fp8")


def mixtral(m: int, **options: Any) -> Any:
    return gs.quantize_(pattern(experts(**options), m), "fp8", where="*experts*")


def routing(tokens: int, count: int) -> tuple[Tensor, Tensor]:
    index = torch.randint(count - 1, (tokens, 1)).repeat(1, 2)  # nobody goes to the last expert
    index[:, 1] = (index[:, 0] + 1) % (count - 1)
    return index, torch.rand(tokens, 2)


def by_definition(module: Any, x: Tensor, index: Tensor, shares: Tensor) -> Tensor:
    """Round the input of each product, token by token, and multiply with the decoded weights in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, (choice, share) in enumerate(zip(index.tolist(), shares.tolist(), strict=True)):
        for expert, each in zip(choice, share, strict=True):
            if expert < module.num_experts:
                inner = module._apply_gate(_product(module, "gate_up_proj", expert, x[token : token + 1]).float())
                down = _product(module, "down_proj", expert, inner)
                if getattr(module, "has_post_expert_norm", False):
                    down = module.post_expert_norm(down.float()).double()
                out[token] += each * down[0]
    return out


def _product(module: Any, name: str, expert: int, x: Tensor) -> Tensor:
    arrays, layout = module.arrays(name), module.stacks[name].layout
    shared = None if arrays.shared is None else arrays.shared[expert : expert + 1]
    small, scale = quantize(x, shared, x.shape[1], layout.m, layout.dtype)
    out = small.double() * scale.double()[:, None] @ getattr(module, name)[expert].double().t()
    return out + getattr(module, f"{name}_bias")[expert].double() if module.has_bias else out


def close(a: Tensor, b: Tensor) -> None:
    """But for values between the products that are rounded to a neighbour: 6 % of one of a hundred."""
    torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=5e-3 * float(b.abs().max()) + 1e-9)


@pytest.mark.parametrize("m", [4, 8, 16])
@pytest.mark.parametrize("kind", ["mixtral", "other"])
@torch.no_grad()
def test_as_by_definition(m: int, kind: str) -> None:
    module = other(m) if kind == "other" else mixtral(m).model.layers[0].mlp.experts
    assert isinstance(module, QuantizedExperts) and type(module).__name__.startswith("Quantized")
    for tokens in (7, 1, 0):
        x, (index, shares) = torch.randn(tokens, 64), routing(tokens, module.num_experts)
        found = module(x, index, shares)
        assert found.shape == x.shape
        if tokens:
            close(found, by_definition(module, x, index, shares))
            dense = module.as_dense()(x, index, shares)
            assert float((found - dense).abs().max()) < 0.1 * float(dense.abs().max())


@torch.no_grad()
def test_tokens_of_no_expert_and_other_types() -> None:
    module = other(8)
    x, index, shares = torch.randn(3, 64), torch.tensor([[0, 4], [4, 4], [2, 1]]), torch.rand(3, 2)
    found = module(x, index, shares)
    close(found, by_definition(module, x, index, shares))
    assert not found[1].any()
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(module).to(dtype)
        out = half(x.to(dtype), index, shares.to(dtype))
        assert out.dtype is dtype and half.gate_up_proj.dtype is dtype and half.gate_up_proj_values.dtype.itemsize == 1
        torch.testing.assert_close(out.float(), found, rtol=0, atol=0.05 * float(found.abs().max()))
        assert gs.densify_(half).down_proj.dtype is dtype
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, index, shares)
    assert out.dtype is torch.float32
    torch.testing.assert_close(out, found, rtol=0, atol=0.05 * float(found.abs().max()))
    with pytest.raises(ValueError, match="last dimension must be 64"):
        module(x[:, :60], index, shares)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("m", [4, 8])
@torch.no_grad()
def test_by_the_kernels_of_a_gpu(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, (index, shares) = other(m).bfloat16(), torch.randn(9, 64).bfloat16(), routing(9, 4)
    index[3] = 4  # none of them
    expected = module(x, index, shares)
    emulate(monkeypatch, experts_eight, 132)
    monkeypatch.setattr(stack, "_product", experts_eight.KINDS.run)
    found = module(x, index, shares)
    assert len(experts_eight.KINDS._calls) == 2 and not found[3].any()
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0.02 * float(expected.abs().max()))


def test_gradients_are_those_of_dense_weights() -> None:
    module = other(4)
    dense = module.as_dense()
    index, grads = torch.tensor([[0, 1], [2, 0], [1, 2]]), []
    for each in (module, dense):
        x, shares = torch.linspace(-1, 1, 192).view(3, 64).requires_grad_(), torch.ones(3, 2).requires_grad_()
        each.zero_grad()
        each(x, index, shares).square().sum().backward()
        grads.append((x.grad, shares.grad, each.down_proj_bias.grad.clone()))
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted)
    assert not module(torch.ones(3, 64), index, torch.ones(3, 2)).requires_grad


def stored(module: nn.Module) -> nn.Module:
    torch.save(module, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("m", [4, 8])
@torch.no_grad()
def test_copied_saved_and_loaded(m: int, tmp_path: Path) -> None:
    model, ids = mixtral(m, layers=2), torch.randint(32, (2, 6))
    expected = model(ids).logits
    for again in (copy.deepcopy(model), stored(model)):
        assert torch.equal(again(ids).logits, expected)
    for start in (4, 8):
        again = mixtral(start, layers=2)
        again.load_state_dict(model.state_dict(), strict=True)
        assert torch.equal(again(ids).logits, expected) and repr(again) == repr(model)
    gs.save(model, tmp_path / "experts.safetensors")
    other_type = gs.load(experts(layers=2).bfloat16(), tmp_path / "experts.safetensors")
    assert other_type.model.layers[1].mlp.experts.down_proj.dtype is torch.bfloat16
    assert other_type(ids).logits.dtype is torch.bfloat16
    sparse = experts(layers=2)
    packed(sparse, 8)
    for target in (experts(layers=2), sparse, mixtral(4, layers=2), mixtral(16, layers=2)):
        assert torch.equal(gs.load(target, tmp_path / "experts.safetensors")(ids).logits, expected)
    model.save_pretrained(tmp_path / "folder")
    again, info = t.MixtralForCausalLM.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert not any(info.values()), info
    assert torch.equal(again(ids).logits, expected)
    half = t.MixtralForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.bfloat16)
    assert half.model.layers[1].mlp.experts.weights_dtype is torch.bfloat16
    base = t.MixtralModel.from_pretrained(tmp_path / "folder")
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)
    gs.densify_(again).save_pretrained(tmp_path / "dense")
    plain = t.MixtralForCausalLM.from_pretrained(tmp_path / "dense", experts_implementation="eager")
    assert torch.equal(plain(ids).logits, again(ids).logits)
    gs.save(model, tmp_path / "dense.safetensors", dense=True)
    loaded = gs.load(experts(layers=2), tmp_path / "dense.safetensors")
    assert torch.equal(loaded(ids).logits, again(ids).logits)


@pytest.mark.parametrize("m", [4, 8])
@torch.no_grad()
def test_biases_and_norms_in_files(m: int, tmp_path: Path) -> None:
    model, x, (index, shares) = nn.Sequential(other(m)), torch.randn(5, 64), routing(5, 4)
    nn.init.normal_(model[0].post_expert_norm.weight)
    expected = model[0](x, index, shares)
    gs.save(model, tmp_path / "other.safetensors")
    dense = nn.Sequential(other(m).as_dense())
    for target in (dense, copy.deepcopy(dense).to("meta"), nn.Sequential(other(16)).to("meta")):
        loaded = gs.load(target, tmp_path / "other.safetensors")
        assert torch.equal(loaded[0](x, index, shares), expected) and repr(loaded) == repr(model)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    model, ids = mixtral(8), torch.randint(32, (1, 4))
    state, again, prefix = model.state_dict(), mixtral(8), "model.layers.0.mlp.experts.gate_up_proj_"
    with torch.no_grad():
        expected = again(ids).logits
    for part, tensor, said in (
        ("scale", torch.zeros(5 * 256), "more than 0"),
        ("scale", torch.ones(7), "an array of experts"),
        ("values", state[f"{prefix}values"].view(torch.int8), "float8"),
        ("values", state[f"{prefix}values"][:-1], "an array of experts"),
        ("meta", torch.zeros_like(state[f"{prefix}meta"]), "ascend"),
        ("shared", state[f"{prefix}shared"] + 8, "column"),
        ("format", torch.tensor(list(b"fp8 2:4, float32"), dtype=torch.uint8), "shares none"),
        ("format", torch.tensor(list(b"fp8 dense, float32"), dtype=torch.uint8), "not fp8 dense"),
        ("format", torch.tensor(list(b"fp8 256:2:8, complex64"), dtype=torch.uint8), "complex64"),
    ):
        broken = state | {prefix + part: tensor}
        with pytest.raises(ValueError, match=said):
            again.load_state_dict(broken)
        gs.save(broken, tmp_path / "bad.safetensors")
        target = experts()
        with pytest.raises(ValueError, match=said):
            gs.load(target, tmp_path / "bad.safetensors")
        assert not isinstance(target.model.layers[0].mlp.experts, QuantizedExperts)  # as it was
    with torch.no_grad():
        assert torch.equal(again(ids).logits, expected)
    alone = {f"{prefix}meta": torch.zeros_like(state[f"{prefix}meta"])}
    with pytest.raises(ValueError, match="ascend"):
        again.load_state_dict(alone, strict=False)
    gs.save({n: tensor for n, tensor in state.items() if "down_proj" not in n}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match="the file and the model differ"):
        gs.load(experts(), tmp_path / "half.safetensors")


def test_a_broken_folder_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    mixtral(8).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    good = load_file(file)
    name = next(n for n in good if n.endswith("down_proj_meta")).removesuffix("meta")
    for part, said in (("meta", "ascend"), ("shared", "column")):
        bad = {n: tensor.clone() for n, tensor in good.items()}
        bad[name + part] = torch.zeros_like(bad[name + part]) if part == "meta" else bad[name + part] + 8
        save_file(bad, file, {"format": "pt"})
        with pytest.raises(ValueError, match=said):
            t.MixtralForCausalLM.from_pretrained(tmp_path)
    save_file({n: tensor for n, tensor in good.items() if n != name + "scale"}, file, {"format": "pt"})
    with pytest.raises(ValueError, match="lacks down_proj_scale"):
        t.MixtralForCausalLM.from_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("fp8 64:2:8", "fp8 63:2:8"))
    with pytest.raises(ValueError, match="invalid entry for quantized experts"):
        t.MixtralForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("m", [4, 8])
@torch.no_grad()
def test_compiled(m: int) -> None:
    model, ids = mixtral(m, layers=2), torch.randint(32, (2, 6))
    expected = model(ids).logits
    torch._dynamo.reset()
    close(torch.compile(model, fullgraph=True)(ids).logits, expected)
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (2, 9)


def test_a_trace_with_gradients_has_dense_weights() -> None:
    module = mixtral(4).model.layers[0].mlp.experts
    module.config._experts_implementation = "batched_mm"  # which can be traced
    index, shares = routing(5, 5)
    x = torch.randn(5, 64, requires_grad=True)
    torch._dynamo.reset()
    found = torch.compile(module, backend="aot_eager", fullgraph=True)(x, index, shares)
    torch.testing.assert_close(found, module(x, index, shares), rtol=1e-4, atol=1e-4)
    found.sum().backward()
    assert bool(x.grad.any())


@torch.no_grad()
def test_summary_pack_report_and_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = mixtral(8), torch.randint(32, (1, 4))
    path = "model.layers.0.mlp.experts"
    row = next(row for row in gs.summary(model).rows if row.name == f"{path}.gate_up_proj_values")
    assert (row.shape, row.format) == ((5, 256, 64), "fp8 256:2:8") and 0.2 < row.density <= 0.25
    assert row.dense_bytes == 5 * 256 * 64 * 4 and row.bytes == quantized_weights(model)[f"{path}.gate_up_proj"].nbytes
    expected = model(ids).logits
    report = gs.pack_(model, {"input_ids": ids}, quiet=True)
    assert dict(report.skipped)[f"{path}.down_proj"] == (
        "fp8 64:2:8 is for a GPU; on a CPU a dense copy of each expert is multiplied"
    )
    assert torch.equal(model(ids).logits, expected)
    facts = {fact.name: fact for fact in gs.report(model, None, tokens=(2,)).layers}
    assert facts[f"{path}.down_proj"].format == "fp8 64:2:8" and facts[f"{path}.down_proj"].kernel == "torch.matmul"
    module = model.model.layers[0].mlp.experts
    said = gs.explain(module, torch.ones(2, 64))
    assert said.how == "fallback" and "this is a CPU" in said.why and "fp8 256:2:8" in str(said)
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    monkeypatch.setattr(QuantizedExperts, "device", torch.device("cuda", 0))
    assert gs.explain(module).function == "vnm_experts_8bit"
    assert "(5, 256, 64)" not in repr(module) and "gate_up_proj=fp8 256:2:8" in repr(module)


def test_averages_leave_the_weights_alone() -> None:
    model = mixtral(4)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    average.update_parameters(model)
    ids = torch.randint(32, (1, 4))
    with torch.no_grad():
        assert torch.equal(average(ids).logits, model(ids).logits)
