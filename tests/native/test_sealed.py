"""Damaged libraries are never loaded; what was checked is what is loaded."""

import ctypes
import os
import random
import shutil
import subprocess
import sys

import pytest

from gossamer import native
from gossamer.native import sealed
from gossamer.native.build import build, compiler, load_built
from gossamer.native.cache import BuildError

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
CODE = 'extern "C" __attribute__((visibility("default"))) int number() { return NUMBER; }'


def library(tmp_path, number):
    source = tmp_path / "number.cpp"
    source.write_text(CODE)
    return build("number", {"number": (source, [f"-DNUMBER={number}"])}, [])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def damaged(rng, data):
    """Cut at a random length, or change a random byte, or some of them."""
    if rng.random() < 0.5:
        return data[: rng.randrange(len(data))]
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        out[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    return bytes(out)


def test_every_damage_is_noticed(tmp_path, caplog):
    rng, path = random.Random(0), tmp_path / "library.so"
    path.write_bytes(rng.randbytes(5000))
    sealed.seal(path, "key")
    data = path.read_bytes()
    assert sealed.whole(path, "key")
    assert not sealed.whole(path, "another key")
    for _ in range(2000):
        broken = damaged(rng, data)
        if broken != data:
            path.write_bytes(broken)
            assert sealed.load(path, "key") is None
    assert "damaged" in caplog.text
    assert sealed.load(tmp_path / "nothing.so", "key") is None
    assert not sealed.whole(tmp_path / "nothing.so", "key")


@needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_library_is_built_again(cache, seed):
    path = library(cache, 7)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(damaged(random.Random(seed), data))
    path.chmod(0o700)
    assert library(cache, 7) == path
    assert load_built(path).number() == 7


@needs_compiler
def test_damage_after_the_build_is_an_error(cache):
    path = library(cache, 8)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BuildError, match="damaged"):
        load_built(path)


@needs_compiler
def test_what_was_checked_is_loaded_though_another_file_has_its_name_by_then(cache, monkeypatch):
    good, other = library(cache, 9), library(cache, 10)
    own = sealed._is_whole

    def replaced(data, key, path):
        answer = own(data, key, path)
        os.replace(other, path)  # by another process, say, between the check and the load
        return answer

    monkeypatch.setattr(sealed, "_is_whole", replaced)
    assert sealed.load(good, good.name).number() == 9
    assert ctypes.CDLL(str(good)).number() == 10


@needs_compiler
def test_no_name_comes_twice_in_a_long_life(cache):
    path = library(cache, 11)
    with path.open("rb") as file:
        names = [sealed._name_of(file.fileno(), path) for _ in range(100_000)]
        assert ctypes.CDLL(names[-1]).number() == 11
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 100


@needs_compiler
def test_numbers_of_closed_files_are_used_again(cache):
    handles = [load_built(library(cache, n)) for n in range(20, 25)]
    assert [handle.number() for handle in handles] == [20, 21, 22, 23, 24]


@needs_compiler
def test_what_the_system_does_not_load_is_an_error_in_words(cache, monkeypatch):
    path = library(cache, 12)

    def refused(name):
        raise OSError(f"{name}: failed to map segment from shared object")

    monkeypatch.setattr(sealed.ctypes, "CDLL", refused)
    with pytest.raises(BuildError, match=r"\.so can't be loaded: failed to map segment from shared object$"):
        load_built(path)
    monkeypatch.setattr(sealed.cache, "runs_code", lambda: False)
    with pytest.raises(BuildError, match="mounted noexec: name another folder"):
        load_built(path)


NOEXEC = """
import os, torch, gossamer as gs
a = gs.from_dense(torch.eye(3), gs.CSR())
w = gs.sparsify(torch.ones(4, 8), "50%", format=gs.formats.PackedCSR())
with gs.fallback("silent"):
    print(torch.nn.functional.linear(torch.ones(2, 8), w).sum().item(), gs.native.load())
    print(gs.einsum("ij,jk->ik", a, torch.ones(3, 3)).sum().item(), gs.einsum("ij,jk->ik", a, a).sum().item())
print("noexec" in gs.native.why_not(), gs.explain(gs.einsum, "ij,jk->ik", a, a).how)
"""


def test_a_cache_that_may_not_run_code_gives_the_slow_path(tmp_path):
    program = [sys.executable, "-c", NOEXEC]
    inside = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o noexec none "$0" && exec "$@"', str(tmp_path)]
    env = {**os.environ, "GOSSAMER_CACHE": str(tmp_path / "cache")}
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no right to mount a file system")
    answer = subprocess.run([*inside, *program], env=env, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[:2] == ["32.0 False", "9.0 3.0"]
    assert answer.stdout.splitlines()[2].startswith("True ")


PROGRAM = """
import logging, torch, gossamer as gs
logging.basicConfig()
w = gs.sparsify(torch.ones(4, 8), "50%", format=gs.formats.PackedCSR())
print(torch.nn.functional.linear(torch.ones(2, 8), w).sum().item(), gs.native.load())
"""


@pytest.mark.parametrize("seed", range(3))
def test_without_a_compiler_damaged_kernels_give_a_message_and_the_slow_path(tmp_path, seed):
    path = native.path()
    if path is None or path.parent.name != "native":
        pytest.skip("the kernels are not from a cache")
    folder = tmp_path / "native"
    folder.mkdir(mode=0o700)
    copy = folder / path.name
    copy.write_bytes(damaged(random.Random(seed), path.read_bytes()))
    copy.chmod(0o700)
    env = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "PATH": "", "CXX": ""}
    answer = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["32.0", "False"]
    assert "damaged" in answer.stderr
    shutil.copy2(path, copy)
    answer = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert answer.stdout.split() == ["32.0", "True"], answer.stderr
