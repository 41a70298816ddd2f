"""The two lines of a roofline."""

import sys

import pytest

from gossamer import native
from gossamer.native import Ceilings
from gossamer.native.build import compiler
from gossamer.native.cache import BuildError

module = sys.modules[Ceilings.__module__]
TOP = Ceilings(threads=2, gflops=100.0, cache_gbytes=60.0, memory_gbytes=20.0)


@pytest.mark.parametrize(("intensity", "want"), [(0.5, 30.0), (1.0, 60.0), (100 / 60, 100.0), (9.0, 100.0), (0.0, 0.0)])
def test_what_is_reachable_by_hand(intensity, want):
    assert TOP.reachable(intensity) == pytest.approx(want)


@pytest.fixture
def fresh():
    native.ceilings.cache_clear()
    yield
    native.ceilings.cache_clear()


def test_without_kernels_or_a_compiler_there_are_none(fresh, monkeypatch):
    monkeypatch.setattr(module, "isa", lambda: None)
    assert native.ceilings(1) is None
    native.ceilings.cache_clear()

    def fails(*args):
        raise BuildError("no compiler")

    monkeypatch.setattr(module, "isa", lambda: "avx2")
    monkeypatch.setattr(module, "build", fails)
    assert native.ceilings(1) is None


def test_threads_are_added_up_and_measured_once(fresh, monkeypatch):
    sizes = []

    class Number:
        restype = argtypes = None

        def __init__(self, run):
            self.run = run

        def __call__(self, *args):
            return self.run(*args)

    class Library:
        fma_gflops = Number(lambda: 10.0)
        read_gbytes = Number(lambda size: sizes.append(size) or (5.0 if size == 8 << 20 else 2.0))

    monkeypatch.setattr(module, "isa", lambda: "baseline")
    monkeypatch.setattr(module, "build", lambda *args: "library.so")
    monkeypatch.setattr(module, "load_built", lambda path: Library)
    assert native.ceilings(3) == Ceilings(3, 30.0, 15.0, 6.0)
    assert sorted(sizes) == [8 << 20] * 3 + [256 << 20] * 3
    assert native.ceilings(3) is native.ceilings(3) and len(sizes) == 6


@pytest.mark.skipif(compiler() is None or not native.load(), reason="no C++ compiler")
def test_flags_are_those_of_the_instruction_set():
    assert "-DWIDTH=16" in module._FLAGS["avx512"] and "-DWIDTH=8" in module._FLAGS["avx2"]
    assert module._SOURCE.is_file()
