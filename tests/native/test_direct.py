"""Products without torch's dispatcher: the results of the operators for plain tensors, and None for all else."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gossamer as gs
from gossamer import native
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.weight import rounded

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels")
pytestmark = needs_kernels


@pytest.fixture(scope="module")
def packed():
    """An int8 weight of 5 x 12, and what a product with it is, by the operator."""
    weight = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    return pack_as(rounded(weight), weight != 0, Layout("dense"))


def by_operator(packed, x, bias):
    return torch.ops.gossamer.int8_linear(packed, x, bias, 5, 0)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1, 12),
        torch.randn(12),
        torch.randn(3, 2, 12),
        torch.randn(0, 12),
        torch.randn(12, 4).t(),
        torch.randn(3, 24)[:, ::2],
        torch.randn(2, 12).bfloat16(),
        torch.nn.Parameter(torch.randn(2, 12)),
    ],
    ids=["1x12", "12", "3x2x12", "0x12", "turned", "every other", "bfloat16", "parameter"],
)
@pytest.mark.parametrize("bias", [None, torch.randn(5)], ids=["no bias", "bias"])
def test_the_same_as_the_operator(packed, x, bias):
    out = native.direct("int8")(packed, x, bias, 5, 0)
    expected = by_operator(packed, x, bias)
    assert type(out) is torch.Tensor and out.dtype is expected.dtype and not out.requires_grad
    assert torch.equal(out, expected)


def test_a_result_is_an_ordinary_tensor(packed):
    out = native.direct("int8")(packed, torch.randn(1, 12), None, 5, 0)
    out.resize_(1000).fill_(1.0)  # memory of torch's own, which can grow
    assert out.sum() == 1000
    with torch.inference_mode():
        assert native.direct("int8")(packed, torch.randn(1, 12), None, 5, 0).is_inference()


class Tagged(torch.Tensor):
    """A subclass, which wants to see what is computed with it."""


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 11),
        torch.tensor(1.0),
        torch.randn(2, 12).double(),
        torch.randn(2, 12).to_sparse(),
        torch.zeros(2, 12, device="meta"),
        torch.randn(2, 12).as_subclass(Tagged),
        torch.imag(torch.randn(2, 12, dtype=torch.complex64).conj()),
        torch.randn(*[1] * 8, 12),
        [1.0] * 12,
    ],
    ids=["11 columns", "no dimension", "double", "sparse", "meta", "subclass", "negative view", "9 dimensions", "list"],
)
def test_another_input_is_left_to_the_operator(packed, x):
    assert native.direct("int8")(packed, x, None, 5, 0) is None


def test_a_negative_view_is_read_with_its_sign(packed):
    layer = gs.nn.DynamicInt8Linear(packed, None, (5, 12))
    x = torch.imag(torch.randn(2, 12, dtype=torch.complex64).conj())
    assert x.is_neg()
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x.resolve_neg()))


class Watch(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Below(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "mode",
    [Watch, Below, torch.autograd.profiler.profile, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["function mode", "dispatch mode", "profiler", "autocast"],
)
def test_modes_see_the_operator(packed, mode):
    x = torch.randn(1, 12)
    with mode():
        assert native.direct("int8")(packed, x, None, 5, 0) is None
    assert native.direct("int8")(packed, x, None, 5, 0) is not None


def test_the_profiler_shows_the_product(packed):
    layer = gs.nn.DynamicInt8Linear(packed, None, (5, 12))
    with torch.no_grad(), torch.profiler.profile() as seen:
        layer(torch.randn(1, 12))
    assert "gossamer::int8_linear" in {event.name for event in seen.events()}


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4, 5), (None,) * 5, (1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("name", ["rows", "int8", "layer"])
def test_arguments_that_make_no_sense_are_answered_with_none(name, arguments):
    assert native.direct(name)(*arguments) is None


def test_it_can_be_switched_off():
    code = "from gossamer import native; print(native.direct('int8').__name__, native.direct('int8')(1, 2))"
    env = {**os.environ, "GOSSAMER_DIRECT": "0"}
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert answer.stdout.strip() == "_nothing None", answer.stderr


# -- layers


def sparse_layer(bias=True, format=None):
    layer = torch.nn.Linear(40, 32, bias=bias)
    return gs.sparsify_(layer, "75%", format=format or gs.formats.PackedCSR()).requires_grad_(False)


def by_dense(layer, x):
    return F.linear(x, layer.weight.to_dense(), layer.bias)


def assert_right(layer, x=None):
    x = torch.randn(1, 40) if x is None else x
    with torch.no_grad():
        for _ in range(3):  # the second call and the third go the short way
            torch.testing.assert_close(layer(x), by_dense(layer, x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("format", [gs.formats.PackedCSR(), gs.formats.PackedNear()], ids=str)
def test_a_layer_is_ready_after_its_first_call(bias, format):
    layer = sparse_layer(bias, format)
    assert_right(layer)
    assert layer._sparse["weight"].ready is not None


def test_a_layer_notices_what_changed():
    layer = sparse_layer()
    assert_right(layer)
    layer.weight_values.data = torch.randn_like(layer.weight_values)
    assert_right(layer)
    layer.weight_values.mul_(2)
    assert_right(layer)
    layer.bias = torch.nn.Parameter(torch.randn(32), requires_grad=False)
    assert_right(layer)
    layer.bias = None
    assert_right(layer)
    layer.weight_values = torch.nn.Parameter(torch.randn_like(layer.weight_values), requires_grad=False)
    assert_right(layer)
    layer.to(torch.bfloat16)
    with torch.no_grad():
        assert layer(torch.randn(1, 40).bfloat16()).dtype is torch.bfloat16


def test_a_layer_checks_arrays_that_were_written_to():
    layer = sparse_layer()
    assert_right(layer)
    layer.weight_pos3.fill_(1 << 20)
    with torch.no_grad(), pytest.raises(ValueError, match="pos"):
        layer(torch.randn(1, 40))


def test_a_layer_is_copied_and_pickled_after_a_call():
    layer = sparse_layer()
    assert_right(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        other.weight_values.mul_(3)
        assert_right(other)
    assert_right(layer)


def test_functional_call_replaces_parameters():
    layer, x = sparse_layer(), torch.randn(1, 40)
    assert_right(layer)
    with torch.no_grad():
        twice = {name: 2 * tensor for name, tensor in layer.named_parameters()}
        torch.testing.assert_close(torch.func.functional_call(layer, twice, x), 2 * layer(x))


def test_linear_with_a_sparse_tensor_is_ready_after_its_first_call():
    weight, x = sparse_layer().weight.detach(), torch.randn(1, 40)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(F.linear(x, weight), x @ weight.to_dense().t())
        assert weight.structure.ready is not None
        with gs.fallback("silent"), pytest.raises(RuntimeError, match=r"shape|size"):  # torch's own words
            F.linear(torch.randn(1, 39), weight)


def test_gradients_are_recorded_as_before():
    layer, x = gs.sparsify_(torch.nn.Linear(40, 32), "75%", format=gs.formats.PackedCSR()), torch.randn(1, 40)
    assert_right(layer)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.ones(32))


def test_threads_change_no_bit():
    layer = gs.sparsify_(torch.nn.Linear(768, 3072), "90%", format=gs.formats.PackedCSR()).requires_grad_(False)
    x, threads = torch.randn(1, 768), torch.get_num_threads()
    try:
        alone = layer(x)
        for count in (2, 3, 2):
            torch.set_num_threads(count)
            assert all(torch.equal(layer(x), alone) for _ in range(50))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_computes_with_one_thread():
    code = """
import os, torch, gossamer as gs
torch.set_num_threads(2)
layer = gs.sparsify_(torch.nn.Linear(768, 3072), "90%", format=gs.formats.PackedCSR()).requires_grad_(False)
x = torch.randn(1, 768)
before = [layer(x) for _ in range(20)][-1]
child = os.fork()
same = all(torch.equal(layer(x), before) for _ in range(20))
if child == 0:
    os._exit(0 if same else 1)
print(same, os.waitpid(child, 0)[1])
"""
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
    assert answer.stdout.split() == ["True", "0"], answer.stderr
