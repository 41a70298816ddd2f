"""Packed models on their way out: torch.compile in one graph, torch.export to a file and back, AOTInductor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from tests.hf.models import bert, gpt2, llama

Case = tuple[nn.Module, tuple[Tensor, ...]]


class Logits(nn.Module):
    """A transformers model from tensors to a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask).logits


def mlp(format: gs.Format | None = None) -> Case:
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8))
    gs.sparsify_(model, "2:4", format=format or gs.formats.PackedCSR())
    return model.eval().requires_grad_(False), (torch.randn(5, 64),)


def regular() -> Case:
    return mlp(gs.formats.PackedNM(2, 4))


def int8() -> Case:
    model, x = mlp()
    return gs.quantize_(model), x


def mixed() -> Case:
    model, x = mlp()
    return gs.quantize_(model, where="0"), x


def _transformer(make: Callable[[], Any], format: gs.Format) -> Case:
    model = make().eval().requires_grad_(False)
    gs.sparsify_(model, "75%", format=format)
    model.config.use_cache = False
    return Logits(model), (torch.randint(1, 100, (2, 9)), torch.ones(2, 9, dtype=torch.long))


def small_bert() -> Case:
    return _transformer(bert, gs.formats.PackedCSR())


def small_gpt2() -> Case:
    model, inputs = _transformer(gpt2, gs.formats.PackedCSR(order=(1, 0)))
    model.model.set_attn_implementation("eager")  # torch 2.13 can't decompose its fused attention, dense or sparse
    return model, inputs


def small_llama() -> Case:
    return _transformer(llama, gs.formats.PackedCSR())


CASES = [mlp, regular, int8, small_bert, small_gpt2, small_llama]
INDUCED = [mixed, small_bert]  # by the real compiler, which takes its time
every = pytest.mark.parametrize("make", CASES)
warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@warnings
@every
def test_compile_in_one_graph(make: Callable[[], Case], backend: str = "aot_eager") -> None:
    torch._dynamo.reset()
    model, inputs = make()
    with torch.no_grad():
        close(torch.compile(model, fullgraph=True, backend=backend)(*inputs), model(*inputs))


@warnings
@pytest.mark.slow
@pytest.mark.parametrize("make", INDUCED)
def test_compile_by_inductor(make: Callable[[], Case]) -> None:
    test_compile_in_one_graph(make, "inductor")


@warnings
@every
def test_export_save_load(make: Callable[[], Case], tmp_path: Path) -> None:
    model, inputs = make()
    with torch.no_grad():
        program = torch.export.export(model, inputs)
        close(program.module()(*inputs), model(*inputs))
        torch.export.save(program.run_decompositions(), tmp_path / "model.pt2")
        close(torch.export.load(tmp_path / "model.pt2").module()(*inputs), model(*inputs))


@warnings
@pytest.mark.parametrize("make", [mlp, int8])
def test_export_for_any_number_of_tokens(make: Callable[[], Case]) -> None:
    model, (x,) = make()
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("tokens", min=2)},))
        program = program.run_decompositions()
        for tokens in (2, 7, 64):
            x = torch.randn(tokens, 64)
            close(program.module()(x), model(x))


@warnings
@pytest.mark.slow
@pytest.mark.parametrize("make", INDUCED)
def test_aot_inductor(make: Callable[[], Case], tmp_path: Path) -> None:
    model, inputs = make()
    with torch.no_grad():
        program = torch.export.export(model, inputs).run_decompositions()
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        served = torch._inductor.aoti_load_package(path)
        close(served(*inputs), model(*inputs))


@warnings
def test_the_graph_holds_the_packed_kernel() -> None:
    model, inputs = mlp()
    with torch.no_grad():
        program = torch.export.export(model, inputs).run_decompositions()
    products = [node for node in program.graph.nodes if "rows_forward" in str(node.target)]
    assert len(products) == 3
    assert not [node for node in program.graph.nodes if node.target is torch.ops.aten.mm.default]
