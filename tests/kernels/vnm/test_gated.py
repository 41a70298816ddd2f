"""Two weights whose results are multiplied: the kernels in the emulator, and the operator against two products."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels.product import activated
from gossamer.kernels.vnm import gated
from gossamer.kernels.vnm.eight import decode8, pack8, quantize
from gossamer.kernels.vnm.operators import columns_of, vnm_of
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
E4M3 = torch.float8_e4m3fn


def pair(rows, cols, m, dtype):
    """Two matrices with the same shared columns."""
    both = gs.sparsify(torch.randn(2 * rows, cols).to(dtype), gs.VNM("all", 2, m), format=gs.Dense())
    return both[:rows].contiguous(), both[rows:].contiguous()


def operands(rows, cols, tokens, m=4, dtype=torch.bfloat16, activation=3, numbers=None):
    torch.manual_seed(rows + cols + tokens)
    dense = pair(rows, cols, m, dtype)
    x = torch.randn(tokens, cols).to(dtype)
    if numbers is not None:
        (a, shared, a_meta, a_scale, _), (b, _, b_meta, b_scale, _) = (pack8(each, m, numbers) for each in dense)
        return dense, (a, a_meta, b, b_meta, shared, a_scale, b_scale, x, rows, cols, m, activation)
    a, b = (gs.from_dense(each, PackedVNM("all", 2, m)) for each in dense)
    one, two = vnm_of(a.structure), vnm_of(b.structure)
    assert m == 4 or torch.equal(one.shared, two.shared)
    weights = (a.values(), one.meta, b.values(), two.meta, one.shared, None, None)
    return dense, (*weights, x, rows, cols, m, activation)


def exact(given, dense):
    """The result of float64 arithmetic over what is multiplied, and the errors of one of the two sums, and of both."""
    *weights, x, rows, cols, m, activation = given
    x, (a, b) = x.double(), (each.double() for each in dense)
    if weights[5] is not None:
        small, scale = quantize(given[7], weights[4], cols, m, weights[0].dtype)
        x = small.double() * scale.double()[:, None]
        a, b = (
            decode8(weights[i], weights[4], weights[i + 1], (rows, cols, 0, m)).double() * weights[5 + i // 2][:, None]
            for i in (0, 2)
        )
    g, u = activated(x @ a.t(), activation), x @ b.t()
    each = x.abs() @ a.abs().t(), x.abs() @ b.abs().t()
    return g * u, each[0] * u.abs() + g.abs() * each[1], each[0] * each[1]


def check(out, given, dense, once=True, sums=None):
    """``sums``: the error of a sum, relative to the sum of its absolute terms."""
    right, sizes, both = exact(given, dense)
    unit = 2.0**-8 if out.dtype is torch.bfloat16 else 2.0**-11
    if sums is None:
        sums = 2.0**-19 if given[5] is not None else given[9] * 2.0**-24
    bound = (1 if once else 4) * unit * right.abs() + 1.2 * sums * sizes + 1.2 * sums**2 * both + 1e-6
    bound = bound + (0 if once else 2 * unit * sizes)
    assert out.dtype is given[7].dtype and out.shape == right.shape
    assert (out.double() - right).abs().le(bound).all(), (out.double() - right).abs().sub(bound).max()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "m", "processors"),
    [
        (64, 64, 1, 4, 132), (128, 192, 5, 4, 132), (192, 1100, 33, 8, 2), (64, 2048, 64, 4, 60),
        (128, 520, 128, 16, 2), (64, 100, 9, 8, 132),
    ],
)  # fmt: skip
def test_some_tokens(rows, cols, tokens, m, processors, dtype, monkeypatch):
    emulate(monkeypatch, gated, processors)
    dense, given = operands(rows, cols, tokens, m, dtype, activation=tokens % 4)
    check(gated.KINDS.run(*given), given, dense)
    assert len(gated.KINDS._calls) == 1  # the kernel ran, not two products


@needs_compiler
@pytest.mark.parametrize(("rows", "cols", "tokens", "m"), [(192, 260, 600, 4), (128, 400, 530, 8), (64, 128, 1030, 4)])
def test_many_tokens(rows, cols, tokens, m, monkeypatch):
    emulate(monkeypatch, gated)
    dense, given = operands(rows, cols, tokens, m, torch.float16)
    check(gated.KINDS.run(*given), given, dense)


@needs_compiler
@pytest.mark.parametrize("numbers", [E4M3, torch.int8])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "m"), [(64, 256, 3, 4), (128, 1100, 40, 8), (192, 300, 520, 4), (128, 520, 600, 8)]
)
def test_eight_bits(rows, cols, tokens, m, numbers, monkeypatch):
    emulate(monkeypatch, gated)
    dense, given = operands(rows, cols, tokens, m, torch.bfloat16, numbers=numbers)
    check(gated.KINDS.run(*given), given, dense)


@needs_compiler
@pytest.mark.parametrize("tokens", [3, 520])
def test_each_weight_has_its_part(tokens, monkeypatch):
    emulate(monkeypatch, gated)
    _, given = operands(128, 128, tokens, activation=1)
    for zero in (0, 2):
        changed = list(given)
        changed[zero] = torch.zeros_like(given[zero])
        assert not gated.KINDS.run(*changed).any()
    swapped = gated.KINDS.run(*given[2:4], *given[:2], *given[4:])
    assert not torch.equal(swapped, gated.KINDS.run(*given))  # relu is of the first only


@needs_compiler
def test_compacted_activations(monkeypatch):
    """A trace gathers the shared columns by torch's operators."""
    emulate(monkeypatch, gated)
    dense, given = operands(64, 256, 5, 8)
    x = given[7].index_select(1, columns_of(given[4], 8))
    out = gated.KINDS.run(*given[:4], given[4].new_empty(0), None, None, x, 64, x.shape[1], 4, 3)
    check(out, given, dense)


def test_what_it_takes(monkeypatch):
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    x, values = torch.zeros(8, 128).half(), torch.zeros(8).half()
    assert gated.takes(values, x, 128, 128) is None and gated.takes(values.to(E4M3), x, 128, 128) is None
    assert "multiple of 64 rows" in gated.takes(values, x, 100, 128)
    assert "float32" in gated.takes(values.float(), x.float(), 128, 128)
    assert "bfloat16" in gated.takes(values.bfloat16(), x, 128, 128)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 0))
    assert "9.0, not compute capability 8.0" in gated.takes(values, x, 128, 128)


def test_wrong_operands_are_named(monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    _, given = operands(64, 64, 2)
    with pytest.raises(RuntimeError, match="tokens x 64"):
        gated.decide(*given[:7], given[7][:, :32], *given[8:])
    with pytest.raises(RuntimeError, match="one type and shape"):
        gated.decide(*given[:2], given[2].half(), *given[3:])


@pytest.mark.parametrize("numbers", [None, E4M3, torch.int8])
@pytest.mark.parametrize(("rows", "cols", "m"), [(64, 96, 4), (50, 100, 8)])
def test_on_a_cpu(rows, cols, m, numbers):
    dense, given = operands(rows, cols, 5, m, numbers=numbers)
    check(torch.ops.gossamer.vnm_gated(*given), given, dense, once=numbers is not None)
    tests = ("test_faketensor",) if numbers is E4M3 else ("test_schema", "test_faketensor")  # torch can't compare e4m3
    torch.library.opcheck(torch.ops.gossamer.vnm_gated.default, given, test_utils=tests)
