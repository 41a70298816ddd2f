"""The README: its example leaves sparse layers with the right results, and its links point at files that exist."""

import copy
import re
import tomllib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from tests.docs.test_pages import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: The results that the first table quotes. A figure changes when its script has run again.
RESULTS = ("encoder", "cpu-avx512", "int8", "gpu-h200", "llm", "pruning")


def address() -> str:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    return urls["Source"]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The names of the README's block, after it has run as typed."""
    namespace: dict = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for _, code in blocks(README):
            exec(code, namespace)
    return namespace


def test_the_example_leaves_sparse_layers(example):
    model = example["model"]
    for layer in (model[0], model[2]):
        assert layer.weight.sparsity == pytest.approx(0.9, abs=1e-3)
        assert isinstance(layer.weight, gs.SparseTensor)


def test_the_example_computes_what_dense_computes(example):
    model, x = copy.deepcopy(example["model"]), example["x"].double()
    first, second = (layer.weight.to_dense().detach().double() for layer in (model[0], model[2]))
    hidden = F.gelu(F.linear(x, first, model[0].bias.double()))
    exact = F.linear(hidden, second, model[2].bias.double())
    # A sum of k products is off by at most k u |w| |x|. The first layer's error goes through GELU (slope <= 1.13).
    unit = torch.finfo(torch.float32).eps
    inner = 1024 * unit * (x.abs() @ first.abs().T + model[0].bias.double().abs()) + 8 * unit * hidden.abs()
    bound = 4096 * unit * (hidden.abs() @ second.abs().T + model[2].bias.double().abs()) + 1.13 * inner @ second.abs().T
    assert ((example["y"].detach().double() - exact).abs() <= bound).all()


def test_one_optimizer_step_keeps_the_example_sparse(example):
    model = copy.deepcopy(example["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(example["x"]).square().mean().backward()
    optimizer.step()
    assert model[0].weight.sparsity == pytest.approx(0.9, abs=1e-3)


def test_layers_of_this_size_are_packed_by_the_cost_model():
    """Without a measurement, so that a busy machine can't change the answer."""
    model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)), "90%")
    report = gs.pack_(model, torch.randn(64, 1024), tune=False)
    assert all(row.format.startswith("Packed") for row in report.layers)


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_are_absolute_and_lead_to_files_of_the_repository(page):
    path = ROOT / page
    if not path.exists():
        pytest.skip(f"no {page}")
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        assert link.startswith(("https://", "#", "mailto:")), link
        if link.startswith(address()):
            inside = re.sub(r"^/(blob|tree)/main/|#.*", "", link.removeprefix(address()))
            assert inside.startswith("/") or (ROOT / inside).exists(), link


def test_the_scripts_and_results_behind_the_figures_exist():
    for name in RESULTS:
        assert (ROOT / "benchmarks" / "results" / f"{name}.json").exists()
    for script in ("encoder", "cpu", "int8", "gpu", "llm", "pruning"):
        assert (ROOT / "benchmarks" / f"{script}.py").exists()
