"""pack_ and the runtime on a GPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import transpose as transpose_cuda
from gossamer.models.pack import tune as pack_tune
from gossamer.native import cuda
from gossamer.native.cuda import driver

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def measured_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(pack_tune, "_file", lambda: tmp_path / "pack.json")


@pytest.mark.parametrize("tune", [True, False])
@pytest.mark.parametrize("how", ["2:4", "all:2:8", "128:2:16", "95%"])
def test_a_packed_model_computes_the_same(how, tune):
    model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda().half()
    gs.sparsify_(model, how)
    x = torch.randn(300, 1024, device="cuda").half()
    with torch.no_grad():
        before = model(x)
        report = gs.pack_(model, x, tune=tune)
        torch.testing.assert_close(model(x), before, rtol=1e-2, atol=1e-2)
    assert len(report.layers) == 2 and all(row.us > 0 for row in report.layers)
    again = gs.pack_(copy.deepcopy(model), x, tune=tune)  # what was measured is known; packed weights can be packed
    assert [row.name for row in again.layers] == [row.name for row in report.layers]


def test_without_an_example():
    model = nn.ModuleDict({"mlp": nn.Linear(1024, 1024), "attn": nn.Linear(1024, 1024)}).cuda().half()
    gs.sparsify_(model, {"mlp*": gs.VNM("all", 2, 16), "attn*": gs.NM(2, 4)})
    x = torch.randn(8, 1024, device="cuda").half()
    with torch.no_grad():
        before = [layer(x) for layer in model.values()]
        report = gs.pack_(model)
        for layer, expected in zip(model.values(), before, strict=True):
            torch.testing.assert_close(layer(x), expected, rtol=1e-2, atol=1e-2)
    assert [row.name for row in report.layers] == ["mlp.weight", "attn.weight"]


def test_large_two_of_eight_is_packed():
    layer = gs.sparsify_(nn.Linear(4096, 4096).cuda().half(), gs.VNM("all", 2, 8))
    gs.pack_(layer, torch.randn(8, 4096, device="cuda").half())
    assert layer.weight.format == PackedVNM("all", 2, 8)


def test_a_kernel_is_compiled_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    monkeypatch.setattr(driver, "_functions", {})
    run = cuda.function("transpose.cu", "transpose", 0, "PqPqqqq", ELEMENT=0)
    assert cuda.function("transpose.cu", "transpose", 0, "PqPqqqq", ELEMENT=0) is run
    (file,) = (tmp_path / "cuda").glob("transpose-*.cubin")
    file.write_bytes(file.read_bytes()[:100])  # damaged: made anew
    monkeypatch.setattr(driver, "_functions", {})
    again = cuda.function("transpose.cu", "transpose", 0, "PqPqqqq", ELEMENT=0)
    assert again is not run and file.stat().st_size > 100
    with pytest.raises(cuda.CudaError, match="launching transpose"):
        again((0, 1, 1), 256, 0, 0, 0, 0, 0, 0, 0)  # a grid of nothing


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_transposes(dtype):
    big = torch.randn(300, 700, device="cuda").to(dtype)
    for x in (big, big[:65, 3:130], big[:1], big[:, :1], big[:64, :64]):
        assert torch.equal(transpose_cuda.transpose(x), x.t())
        turned = transpose_cuda.feature_major(x)
        assert torch.equal(turned, x) and torch.equal(transpose_cuda.token_major(turned), x)


def test_a_chain_of_packed_layers():
    model = nn.Sequential(nn.Linear(512, 1024), nn.SiLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256))
    model = gs.sparsify_(model.cuda().half(), gs.VNM("all", 2, 8), format=PackedVNM("all", 2, 8))
    dense = gs.densify_(copy.deepcopy(model))
    fused = gs.nn.fuse_(copy.deepcopy(model))
    with torch.no_grad():
        for tokens in (1, 30, 100, 515):
            x = torch.randn(tokens, 512, device="cuda").half()
            torch.testing.assert_close(fused(x), dense(x), rtol=2e-2, atol=2e-2)
            assert fused(x).is_contiguous()


def test_patterns_are_chosen_on_the_gpu():
    weight = torch.randn(512, 1024, device="cuda")
    for how in (gs.VNM(64, 2, 8), gs.VNM("all", 2, 16), gs.VNM(128, 2, 32)):
        assert torch.equal(how.select(weight).cpu(), how.select(weight.cpu()))
    assert F.linear(weight[:2], gs.sparsify(weight, gs.VNM(64, 2, 8), PackedVNM(64, 2, 8))).shape == (2, 512)
