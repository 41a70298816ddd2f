"""launch.cpp on a CPU, over a driver of its own: a call that was seen before goes without Python."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gossamer.native import recipe
from gossamer.native.build import build, compiler
from gossamer.native.cuda import SOURCES, calls
from gossamer.native.cuda.calls import Address, Box, Buffer, Call, Launch

HERE = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
_operators = torch.library.Library("gossamer_launch_test", "DEF")
_operators.define("add(Tensor x, Tensor? bias, int count) -> Tensor")
_operators.define("add_slow(Tensor x, Tensor? bias, int count) -> Tensor")


@pytest.fixture(scope="module")
def libraries():
    """The driver, and launch.cpp with one operator."""
    fake = build("fake_cuda", {"fake": (HERE / "fake_cuda.cpp", [])}, [])
    flags = [
        '-DGS_SPACE="gossamer_launch_test"', '-DGS_KEY="CPU"', "-DGS_DEVICE=0", "-DGS_NO_STREAM",
        f'-DGS_DRIVER="{fake}"',
        '-DGS_OPERATORS={"add", "gossamer_launch_test::add_slow", "toi"}',
    ]  # fmt: skip
    headers = [SOURCES / "driver.h", SOURCES / "plan.h", *recipe.headers()]
    path = build("launch_test", {"launch": (SOURCES / "launch.cpp", flags)}, headers, stub="libtorch_cpu.so")
    torch.ops.load_library(path)
    return ctypes.CDLL(str(fake)), ctypes.CDLL(str(path))


@pytest.fixture
def seen(libraries, monkeypatch):
    """How often Python was asked; it remembers a call of one launch."""
    fake, launch = libraries
    asked = []
    run = SimpleNamespace(
        parameters="PPPq 128s", handle=ctypes.cast(fake.add, ctypes.c_void_p).value, shared=0, chained=False
    )

    def slow(x, bias, count):
        asked.append(count)
        if count < 0:
            calls.refuse("a count below zero")
            return x.new_empty(0)
        if x.stride() == (1,):
            arguments = (Address(0), Address(1), Address(2), count, Box(0, count, 1, 16, 1))
            result = Buffer((count,), (1,), torch.float32)
            calls.remember(Call((result,), (Launch(run, (3, 2, 1), 32, arguments),), (0,)), 0)
        return x + (0 if bias is None else bias) + count

    monkeypatch.setattr(calls, "library", lambda: launch)
    monkeypatch.setattr(calls, "primary_context", lambda device: ctypes.c_void_p(0))
    scope = torch.library.Library("gossamer_launch_test", "IMPL")
    scope.impl("add_slow", slow, "CPU")
    launch.gossamer_forget()
    fake_refused = ctypes.c_int.in_dll(fake, "refused")
    fake_refused.value = 0
    yield SimpleNamespace(asked=asked, fake=fake, refused=fake_refused)
    scope._destroy()


add = torch.ops.gossamer_launch_test.add


def test_python_is_asked_once_for_a_kind(seen):
    x, bias = torch.arange(4.0), torch.ones(4)
    for _ in range(3):
        assert torch.equal(add(x, bias, 4), x + 5)
        assert torch.equal(add(x, None, 4), x + 4)
    assert seen.asked == [4, 4]
    assert list((ctypes.c_uint32 * 3).in_dll(seen.fake, "last_grid")) == [3, 2, 1]
    assert torch.equal(add(torch.zeros(5), None, 5), torch.full((5,), 5.0)) and seen.asked == [4, 4, 5]


def test_what_is_not_aligned_goes_to_python(seen):
    x = torch.zeros(9)
    add(x[:4], None, 4)
    assert torch.equal(add(x[1:5], None, 4), torch.full((4,), 4.0)) and seen.asked == [4, 4]
    add(x[:4], None, 4)
    assert seen.asked == [4, 4]


def test_what_python_does_not_remember_is_asked_again(seen):
    x = torch.zeros(8)[::2]
    for _ in range(2):
        assert torch.equal(add(x, None, 4), torch.full((4,), 4.0))
    assert seen.asked == [4, 4]


def test_errors_have_their_text(seen):
    with pytest.raises(RuntimeError, match="a count below zero"):
        add(torch.zeros(4), None, -1)
    add(torch.zeros(4), None, 4)
    seen.refused.value = 1
    with pytest.raises(RuntimeError, match="a launch failed: CUDA_ERROR_NOTHING_WORKS"):
        add(torch.zeros(4), None, 4)
    seen.refused.value = 0
    assert torch.equal(add(torch.zeros(4), None, 4), torch.full((4,), 4.0))


def test_tensors_are_given_back(seen):
    x, bias = torch.zeros(1000), torch.zeros(1000)
    add(x, bias, 1000)

    def users():
        return [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in (x, bias)]

    before = users()
    for _ in range(10):
        add(x, bias, 1000)
    assert users() == before


# -- a call as Python runs it, and as launch.cpp reads it


def test_a_call_by_hand(monkeypatch):
    monkeypatch.setattr(calls, "tensor_map", lambda *arguments: arguments)
    launched = []
    x, out = torch.arange(4.0), Buffer((2, 2), (1, 2), torch.float32)
    arguments = (Address(0), Address(0, 8), Address(1), Address(1, 8), Address(3), 7, b"last", Box(0, 4, 1, 16, 1))
    launch = Launch(lambda *given: launched.append(given), (3, 2, 1), 64, arguments)
    made = Call((Buffer((1,), (1,), torch.int8), out), (launch,))(x, None)
    assert made.shape == (2, 2) and made.stride() == (1, 2) and made.dtype is torch.float32  # the last buffer
    at = x.data_ptr()
    # two tensors are given, the second is none; then the buffers
    assert launched == [((3, 2, 1), 64, at, at + 8, 0, 0, made.data_ptr(), 7, b"last", (at, 4, 1, 16, 1))]


def test_alignment():
    call, x = Call((), (), (0, 2)), torch.zeros(8)
    assert call.fits([x, x[1:], None]) and call.fits([x, None, x[4:]]) and not call.fits([x[1:], None, None])


def test_words_by_hand(monkeypatch):
    monkeypatch.setattr(calls, "primary_context", lambda device: ctypes.c_void_p(99))
    run = SimpleNamespace(parameters="P i 128s", handle=5, shared=48, chained=True)
    launch = Launch(run, (3, 2, 1), 64, (Address(1, 4), 7, Box(0, 9, 8, 16, 2)))
    found = calls.words(Call((Buffer((2, 3), (3, 1), torch.bfloat16),), (launch,), (0, 2)), 0)
    assert found[:3] == [99, 0b101, 1] and found[3:9] == [15, 2, 2, 3, 2, 3] and found[9:11] == [1, 1]
    head, rest = found[11:22], found[22:]
    assert head == [5, 3, 2, 1, 64, 48, 1, 3, 0, 8, 12]  # and where its three parameters begin
    count, held = rest[0], rest[1 : 1 + rest[0]]
    assert count == 18 and held[:2] == [0, 7]  # 140 bytes in words of 8: addresses and maps are written later
    assert rest[1 + count :] == [1, 0, 1, 4, 1, 12, 0, 9, 8, 16, 2]
