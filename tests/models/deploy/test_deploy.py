"""gs.deploy: dense, packed and int8 models become one file that computes the same; on an error nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.models.deploy import deploy as module
from gossamer.models.deploy.compare import difference
from tests.hf.models import bert


def mlp() -> nn.Sequential:
    """A packed layer, one in eight bits, one with int8 weights, a dense one."""
    made = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)), nn.GELU())
    gs.sparsify_(made, {"0": "2:4", "1": "2:4", "2": "75%"}, format=gs.formats.PackedCSR())
    gs.quantize_(made, "int8", where="1")
    return gs.quantize_(made, where="2")  # type: ignore[return-value]


class Branches(nn.Module):
    """Two inputs by name, an attention of its own, results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        scores = (self.q(x) @ self.k(x).transpose(-1, -2)).masked_fill(~mask[:, None, :], -1e9)
        return {"hidden": self.down(nn.functional.gelu(self.up(scores.softmax(-1) @ x))), "scores": (scores,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployed")


@pytest.mark.slow
def test_a_model_of_several_kinds_of_layers_with_any_number_of_tokens(folder: Path) -> None:
    model, x = mlp(), torch.randn(6, 32)
    served = gs.deploy(model, x, folder / "mlp.pt2", dynamic=(0,))
    assert [p.name for p in folder.iterdir() if "mlp" in p.name] == ["mlp.pt2"]
    assert served.about["kernels"] == ["int8_linear", "rows_forward", "rows_int8"]
    with torch.no_grad():
        for tokens in (6, 2, 33):
            x = torch.randn(tokens, 32)
            assert difference(served(x), model(x)) < 0.05
        x = torch.randn(32, 6).t()
        assert difference(served(x), model(x)) < 0.05  # strides of its own
    assert model.training  # as it was


@pytest.mark.slow
def test_half_precision(folder: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 40), nn.LayerNorm(40)).bfloat16()
    gs.sparsify_(model, {"0": "60%"}, format=gs.formats.PackedTiles())
    x = torch.randn(6, 64).bfloat16()
    with torch.no_grad():
        served, expected = gs.deploy(model, x, folder / "half.pt2"), model(x)
    assert served(x).dtype == torch.bfloat16 and difference(served(x), expected) < 0.03


@pytest.mark.slow
def test_int8_with_keywords_is_loaded_again(folder: Path) -> None:
    torch.manual_seed(0)
    model = gs.quantize_(gs.sparsify_(Branches(), "block 1x4 50%"), "int8").requires_grad_(False)
    example = {"x": torch.randn(2, 5, 16), "mask": torch.ones(2, 5, dtype=torch.bool)}
    gs.deploy(model, example, folder / "branches.pt2")
    served = gs.serve.load(folder / "branches.pt2")
    got, want = served(mask=example["mask"], x=example["x"]), model(**example)
    assert difference(got, want) < 0.05
    with pytest.raises(ValueError, match=r"x must be \[2, 5, 16\], as it was deployed for, not \[3, 5, 16\]"):
        served(x=torch.randn(3, 5, 16), mask=example["mask"])
    with pytest.raises(TypeError, match=r"mask must be torch.bool on a CPU, not torch.float32"):
        served(x=example["x"], mask=torch.ones(2, 5))
    with pytest.raises(TypeError, match="deployed with the keywords x, mask; given are x"):
        served(x=example["x"])
    with pytest.raises(TypeError, match="deployed for x, mask"):
        served(example["x"], **example)
    assert repr(served).endswith("x [2, 5, 16], mask [2, 5])")


@pytest.mark.slow
def test_a_transformer_whole(folder: Path) -> None:
    model = gs.quantize_(gs.sparsify_(bert(), "2:4"), "int8").eval()
    ids = torch.randint(1, 100, (2, 9))
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    served = gs.deploy(model, example, folder / "bert.pt2")
    with torch.no_grad():
        assert difference(served(**example)["logits"], model(**example).logits) < 0.05


class Refused(nn.Module):
    """What it does depends on its values."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if float(x.sum()) > 0 else x


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    with pytest.raises(gs.nn.DeployError, match=r"Refused can't be exported by torch.export: (.|\n)*data-dependent"):
        gs.deploy(Refused(), torch.ones(3), tmp_path / "model.pt2")
    model = gs.sparsify_(nn.Sequential(nn.Linear(8, 8)), "50%", format=gs.CSR()).requires_grad_(False)
    with pytest.raises(gs.nn.DeployError, match=r"run in Python: gossamer::spmm. Sparse layers need gs.pack_"):
        gs.deploy(model, torch.ones(3, 8), tmp_path / "model.pt2")
    with pytest.raises(TypeError, match="argument 1 of the example is int"):
        gs.deploy(Refused(), (torch.ones(3), 2), tmp_path / "model.pt2")
    with pytest.raises(ValueError, match=r"must end in .pt2"):
        gs.deploy(Refused(), torch.ones(3), tmp_path / "model.pt")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        gs.deploy(Refused(), torch.ones(3), tmp_path / "none" / "model.pt2")
    with pytest.raises(NotImplementedError, match="on a CPU; this one is on meta"):
        gs.deploy(nn.Linear(2, 2, device="meta"), torch.ones(3, 2), tmp_path / "model.pt2")
    with pytest.raises(ValueError, match="dimension 0 of argument 0 must be free"):
        gs.deploy(nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "model.pt2", dynamic=(0,))
    assert not list(tmp_path.iterdir())


def test_an_operator_of_the_user_in_python_is_refused(tmp_path: Path) -> None:
    @torch.library.custom_op("gossamer_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    @twice.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.gossamer_test.twice(x)

    with pytest.raises(gs.nn.DeployError, match="run in Python: gossamer_test::twice"):
        gs.deploy(Model(), torch.ones(3), tmp_path / "model.pt2")


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder, exc

    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(gs.nn.DeployError, match="needs a C\\+\\+ compiler: install g\\+\\+ or clang\\+\\+"):
        gs.deploy(nn.Linear(2, 2), torch.ones(3, 2), tmp_path / "model.pt2")


@pytest.mark.parametrize("stage", ["compile", "check"])
def test_an_older_file_stays_if_anything_fails(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(program: Any, package_path: str, inductor_configs: Any) -> None:
        Path(package_path).write_bytes(b"half")
        if stage == "compile":
            raise RuntimeError("no space left")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compiled)
    monkeypatch.setattr(module, "load", lambda path: lambda x: x + 1)
    (tmp_path / "model.pt2").write_bytes(b"old")
    message = "no space left" if stage == "compile" else "differs from the model by"
    with pytest.raises(gs.nn.DeployError, match=message):
        gs.deploy(nn.Identity(), torch.ones(3, 2), tmp_path / "model.pt2")
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt2"] and (tmp_path / "model.pt2").read_bytes() == b"old"
