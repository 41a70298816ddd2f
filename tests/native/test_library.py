"""Building and loading: once, whole, and with a plain word when it can't be done."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gossamer import native
from gossamer.native.build import build, compiler
from gossamer.native.cache import BuildError

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "two.cpp"
    path.write_text('extern "C" __attribute__((visibility("default"))) int two() { return 2; }')
    return path


@needs_compiler
def test_built_once_and_again_when_the_source_changes(source):
    first = build("two", {"two": (source, [])}, [])
    stamp = first.stat().st_mtime_ns
    assert build("two", {"two": (source, [])}, []) == first and first.stat().st_mtime_ns == stamp
    source.write_text(source.read_text().replace("2;", "3;"))
    assert build("two", {"two": (source, [])}, []) != first
    assert not list(first.parent.glob(".build-*"))


@needs_compiler
def test_many_at_once(source):
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: build("two", {"two": (source, [])}, []), range(4)))
    assert len(made) == 1


@needs_compiler
def test_a_wrong_source_says_what_the_compiler_says(source):
    source.write_text("int two( {")
    with pytest.raises(BuildError, match=r"two\.cpp"):
        build("two", {"two": (source, [])}, [])


def test_no_compiler(source, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler: install one"):
        build("two", {"two": (source, [])}, [])


def test_cache_that_cannot_be_written(source, tmp_path, monkeypatch):
    if compiler() is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="GOSSAMER_CACHE"):
        build("two", {"two": (source, [])}, [])


def test_a_process_without_kernels_says_so_once_and_works(tmp_path):
    code = """
import logging, torch, gossamer as gs
logging.basicConfig()
w = gs.sparsify(torch.ones(4, 8), "50%", format=gs.formats.PackedCSR())
for tokens in (2, 1):
    print(torch.nn.functional.linear(torch.ones(tokens, 8), w).sum().item())
"""
    env = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "PATH": "", "CXX": ""}
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert answer.stdout.split() == ["32.0", "16.0"], answer.stderr
    assert answer.stderr.count("no C++ compiler") == 1


def test_switched_off(monkeypatch):
    code = "from gossamer import native; print(native.load(), native.why_not(), native.isa())"
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "GOSSAMER_NATIVE": "0"}, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "False GOSSAMER_NATIVE=0 None", answer.stderr


def test_isa_is_known():
    if native.load():
        assert native.isa() in ("avx512", "avx2", "baseline")
    else:
        logging.getLogger("gossamer").info(native.why_not())
