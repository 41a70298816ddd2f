"""Products of packed tiles as an operator: every size and instruction set, infinities, what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gossamer import native
from tests.kernels.tiles.exact import check_product, weight_of

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
linear = torch.ops.gossamer.tiles_linear


def arguments(weight, x, bias=None, activation=0):
    arrays = weight.structure.arrays
    return (arrays["pos1"], arrays["bits1"], weight.values(), x, bias, *weight.shape, activation)


@pytest.mark.parametrize(
    "shape", [(1, 1), (16, 32), (15, 31), (17, 33), (64, 2), (2, 64), (100, 257), (48, 96)], ids=str
)
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.97, 1.0])
def test_every_number_of_tokens(shape, sparsity):
    torch.manual_seed(0)
    for tokens in (1, 2, 3, 4, 5, 11, 12, 13, 15, 16, 17, 31, 32, 33, 48, 49, 63, 530):
        check_product(*shape, tokens, sparsity)


@pytest.mark.parametrize("activation", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 20])
def test_activations(activation, tokens):
    torch.manual_seed(0)
    check_product(50, 70, tokens, 0.5, activation)


@pytest.mark.parametrize("isa", ["amx", "avx512", "baseline"])
def test_every_instruction_set(isa):
    root = Path(__file__).parents[3]
    env = {**os.environ, "GOSSAMER_ISA": isa, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(root)])}
    worker = [sys.executable, "-m", "tests.kernels.tiles.isa_worker"]
    run = subprocess.run(worker, env=env, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    if run.stdout.strip() != isa:
        pytest.skip(f"this processor has no {isa}: {run.stdout.strip()} was tested")


@pytest.mark.parametrize("tokens", [1, 3, 16, 40])
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_kept_is_not_multiplied(tokens, number):
    torch.manual_seed(0)
    dense, weight = weight_of(37, 45, 0.6)
    x = torch.randn(tokens, 45).bfloat16()
    x[tokens - 1, 44] = number
    out = linear(*arguments(weight, x))
    touched = torch.zeros(tokens, 37, dtype=torch.bool)
    touched[tokens - 1] = dense[:, 44] != 0
    assert torch.equal(~out.isfinite(), touched) and touched.any()
    rest = linear(*arguments(weight, torch.where(x.isfinite(), x, 0)))
    torch.testing.assert_close(out[~touched], rest[~touched], rtol=0.01, atol=0.01)


def test_x_of_any_strides():
    _, weight = weight_of(33, 40, 0.5)
    wide = torch.randn(6, 7, 80).bfloat16()
    for x in (wide[..., :40], wide[..., ::2], wide[:, 1:5, 3:43], wide[..., :40].transpose(0, 1), wide[0, :0, :40]):
        expected = linear(*arguments(weight, x.contiguous()))
        assert torch.equal(linear(*arguments(weight, x)), expected) and expected.shape == (*x.shape[:-1], 33)


@pytest.mark.parametrize("tokens", [1, 4, 16, 100])
def test_threads_change_no_bit(tokens):
    torch.manual_seed(0)
    _, weight = weight_of(400, 512, 0.5)
    x, before = torch.randn(tokens, 512).bfloat16(), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(linear(*arguments(weight, x)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_empty_weights():
    for rows, cols in ((0, 5), (5, 0), (0, 0)):
        _, weight = weight_of(rows, cols, 0.5)
        out = linear(*arguments(weight, torch.ones(3, cols).bfloat16(), torch.ones(rows).bfloat16()))
        assert torch.equal(out, torch.ones(3, rows).bfloat16())


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (0, torch.zeros(3, dtype=torch.int32), "pos must run from 0"),
        (0, torch.zeros(2, dtype=torch.int32), r"pos must be int32 \[rows / 16 \+ 1\]"),
        (1, torch.zeros(5, dtype=torch.int32), "bits must be int32"),
        (1, torch.zeros(32), "bits must be int32"),
        (2, torch.zeros(4), "pos must run from 0"),
        (3, torch.zeros(2, 31).bfloat16(), r"x must be bfloat16 \[..., cols\]"),
        (3, torch.zeros(2, 32), r"x must be bfloat16 \[..., cols\]"),
        (4, torch.zeros(16), r"bias must be float32 or bfloat16 \[rows\]"),
        (5, -1, "rows and cols must not be negative"),
        (7, 4, "activation must be 0 none, 1 relu, 2 gelu or 3 silu"),
    ],
)
def test_what_is_refused(at, wrong, message):
    _, weight = weight_of(20, 32, 0.5)
    given = list(arguments(weight, torch.ones(2, 32).bfloat16()))
    given[at] = wrong
    with pytest.raises(RuntimeError, match=message):
        linear(*given)


def test_has_a_fake():
    _, weight = weight_of(33, 40, 0.5)
    given = arguments(weight, torch.randn(2, 3, 40).bfloat16(), torch.randn(33).bfloat16(), 1)
    torch.library.opcheck(linear.default, given, test_utils=("test_schema", "test_faketensor"))
