"""ONNX: a packed model is exported as dense, and onnxruntime computes the same."""

import copy
import warnings

import pytest
import torch
from torch import nn

import gossamer as gs

pytest.importorskip("onnx", reason="needs onnx: pip install onnx onnxruntime")
ort = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("small", [False, True], ids=["float32", "int8"])
@torch.no_grad()
def test_packed_models_as_dense(small, tmp_path):
    model, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).eval(), torch.randn(4, 64)
    gs.sparsify_(model, "90%")
    if small:
        gs.quantize_(model, "int8")
    gs.pack_(model, x, tune=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends its newer exporter, which needs onnxscript
        torch.onnx.export(gs.densify_(copy.deepcopy(model)), (x,), tmp_path / "m.onnx", dynamo=False)
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    near = {"rtol": 0.05, "atol": 0.02} if small else {"rtol": 1e-4, "atol": 1e-5}  # int8 also rounds activations
    torch.testing.assert_close(torch.from_numpy(y), model(x), **near)
