"""Sources that the compiler writes for a GPU: nvcc takes them, where there is one."""

import shutil
import subprocess

import pytest
import torch

import gossamer as gs
from gossamer.compiler.gpu import kernel
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.gpu.softmax import nest
from gossamer.compiler.gpu.source import parameters, source
from gossamer.native.cuda import SOURCES
from gossamer.ops.plans_of import plans_of
from tests.compiler.gpu.emulated import sparse

CASES = {
    "spmm": ("ij,jk->ik", torch.float32, (40, 32)),
    "spmm in half": ("ij,jk->ik", torch.bfloat16, (40, 32)),
    "spmv": ("ij,j->i", torch.float64, (40,)),
    "search": ("ij,ij->i", torch.float32, None),
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("case", CASES)
def test_nvcc_takes_it(case, monkeypatch, tmp_path):
    expression, dtype, shape = CASES[case]
    monkeypatch.setattr(kernel, "on_gpu", lambda device: True)
    a = sparse(5, 40, dtype=dtype)
    other = sparse(5, 40, density=0.6) if shape is None else torch.randn(shape).to(dtype)
    with gs.dense_from(None):
        (plan,) = plans_of(expression, [a, other])
    file = tmp_path / "nest.cu"
    for step in plan.steps:
        file.write_text(step.kernel.source)
        command = ["nvcc", "-cubin", "-arch=sm_80", "--std=c++17", f"-I{SOURCES}", file, "-o", tmp_path / "out"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr


def test_parameters_and_integers():
    made = nest("softmax", "half", ("int", "long long"))
    text = source(made, Mapping("sum", "A1.q", 8), True)
    assert parameters(made) == "P P P P q q" and "typedef long long idx;" in text and "#define ELEMENT 0" in text
    assert "typedef int idx;" in source(made, Mapping("sum", "A1.q", 8), False)
