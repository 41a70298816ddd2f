"""CUDA C++ to machine code: which compiler is found, how it is asked, and what it says."""

import importlib.util
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.native.cuda import CompileError
from gossamer.native.cuda.compiler import Nvcc, _libraries
from gossamer.native.cuda.compiler import compiler as find_compiler


def test_a_compiler_is_looked_for(monkeypatch):
    find_compiler.cache_clear()
    monkeypatch.setenv("GOSSAMER_NVRTC", "/nowhere/libnvrtc.so")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    try:
        with pytest.raises(CompileError, match="no NVRTC to compile GPU kernels with"):
            find_compiler()
    finally:
        find_compiler.cache_clear()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_what_the_compiler_says_is_passed_on(tmp_path):
    with pytest.raises(CompileError, match="no_such_type"):
        Nvcc(shutil.which("nvcc")).compile("no_such_type x;", "one.cu", "sm_80", [], tmp_path)
    code = Nvcc(shutil.which("nvcc")).compile('extern "C" __global__ void f() {}', "one.cu", "sm_80", [], tmp_path)
    assert code[:4] == b"\x7fELF"


@pytest.fixture
def pretender(tmp_path):
    """A program that answers as nvcc does, and writes its arguments as machine code."""
    path = tmp_path / "nvcc"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 12.4, V12.4.99"; exit; fi\n'
        'for word in "$@"; do last="$word"; done\n'
        'if grep -q wrong "$last"; then echo "error: it is wrong" >&2; exit 1; fi\n'
        'while [ "$1" != -o ]; do all="$all $1"; shift; done\n'
        'printf "%s" "$all" > "$2"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_nvcc_is_asked_for_the_architecture_with_macros_and_headers(pretender, tmp_path):
    nvcc = Nvcc(str(pretender))
    assert nvcc.version == "nvcc 12.4"
    said = nvcc.compile("a kernel", "one.cu", "sm_90a", ["-DA=1"], tmp_path).decode().split()
    assert said == ["-cubin", "-gencode=arch=compute_90a,code=sm_90a", f"-I{tmp_path}", "--std=c++17", "-DA=1"]
    with pytest.raises(CompileError, match=r"nvcc 12.4 can't compile one.cu for sm_80:\nerror: it is wrong"):
        nvcc.compile("wrong", "one.cu", "sm_80", [], tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_nvcc_is_used_where_there_is_no_nvrtc(pretender, monkeypatch):
    find_compiler.cache_clear()
    monkeypatch.setenv("GOSSAMER_NVRTC", "/nowhere/libnvrtc.so")
    monkeypatch.setattr(shutil, "which", lambda name: str(pretender) if name == "nvcc" else None)
    try:
        found = find_compiler()
        assert isinstance(found, Nvcc) and find_compiler() is found
    finally:
        find_compiler.cache_clear()


def test_where_nvrtc_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("GOSSAMER_NVRTC", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "lib64").mkdir()
    own = tmp_path / "lib64" / "libnvrtc.so.12"
    own.write_text("")
    found = list(_libraries())
    assert found[-4:] == ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", str(own)]
    assert not any("builtins" in Path(path).name for path in found)
    monkeypatch.setenv("GOSSAMER_NVRTC", "/mine/libnvrtc.so")
    assert list(_libraries()) == ["/mine/libnvrtc.so"]


def test_of_torchs_own_libraries_the_builtins_are_none(monkeypatch, tmp_path):
    monkeypatch.delenv("GOSSAMER_NVRTC", raising=False)
    (tmp_path / "lib").mkdir()
    for name in ("libnvrtc-abc.so.12", "libnvrtc-builtins.so.12"):
        (tmp_path / "lib" / name).write_text("")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torch" else None)
    assert next(_libraries()) == str(tmp_path / "lib" / "libnvrtc-abc.so.12")
    assert not any("builtins" in path for path in _libraries())
