"""Compile C++ sources into a library: once, whole, and with a plain word when it can't be done."""

import ctypes
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gossamer.native.build import build, compiler, compiler_key, find, version
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


@needs_compiler
def test_what_is_built_runs_and_depends_on_headers_and_flags(source, tmp_path):
    header = tmp_path / "number.h"
    header.write_text("#define NUMBER 2")
    source.write_text(
        '#include "number.h"\nextern "C" __attribute__((visibility("default"))) int two() { return NUMBER + MORE; }'
    )
    made = build("two", {"two": (source, ["-DMORE=0"])}, [header])
    assert ctypes.CDLL(str(made)).two() == 2
    assert build("two", {"two": (source, ["-DMORE=0"])}, [header]) == made
    other = build("two", {"two": (source, ["-DMORE=5"])}, [header])
    header.write_text("#define NUMBER 3")
    third = build("two", {"two": (source, ["-DMORE=0"])}, [header])
    assert len({made, other, third}) == 3 and ctypes.CDLL(str(third)).two() == 3
    assert made.stat().st_mode & 0o077 == 0  # nobody else can change it


def test_which_compiler(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} --an-option")
    assert compiler() == [sys.executable, "--an-option"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in ("g++", "clang++") else None)
    assert compiler() == ["/bin/g++"]
    monkeypatch.setenv("CXX", "g++ 'without an end")
    assert compiler() == ["/bin/g++"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiler() is None


def test_libraries_of_another_compiler_are_used_only_if_there_is_none(tmp_path):
    command = [sys.executable]
    mine, other = tmp_path / f"two-abc-{compiler_key(command)}.so", tmp_path / "two-abc-00000000.so"
    other.write_text("")
    other.chmod(0o700)
    assert find(tmp_path, "two-abc", command) is None and find(tmp_path, "two-abc", None) == other
    mine.write_text("")
    mine.chmod(0o700)
    assert find(tmp_path, "two-abc", command) == mine and find(tmp_path, "two", command) is None
    mine.chmod(0o722)
    assert find(tmp_path, "two-abc", command) is None  # others could have written it


def test_a_compiler_is_known_by_its_file_and_options(tmp_path):
    program = tmp_path / "cc"
    program.write_text("one")
    first = version([str(program)])
    assert version([str(program)]) == first != version([str(program), "-m32"])
    link = tmp_path / "link"
    link.symlink_to(program)
    assert version([str(link)]) == first
    program.write_text("another")
    assert version([str(program)]) != first and len(compiler_key([str(program)])) == 8
    assert str(Path(program).resolve()) in first
