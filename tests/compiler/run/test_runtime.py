"""The cache of kernels: right after damage, with many processes at once, and without a compiler."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.ops.plans_of import plan_of

SOURCE = "long twice(long x) { return 2 * x; }"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.so"))


def test_a_source_is_built_once(cache):
    assert runtime.library(SOURCE).twice(21) == 42
    (entry,) = entries(cache)
    made = entry.stat().st_mtime_ns
    assert runtime.library(SOURCE).twice(4) == 8
    assert entries(cache) == [entry] and entry.stat().st_mtime_ns == made
    assert list(cache.glob(".build-*")) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_entry_is_built_again(cache, damage, caplog):
    source = SOURCE + f" /* {damage} */"  # another library: one that is loaded already would be used again
    runtime.library(source)
    (entry,) = entries(cache)
    data = entry.read_bytes()
    middle = len(data) // 2
    broken = {
        "cut": data[:middle],
        "flip": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "empty": b"",
        "text": b"not a library",
    }[damage]
    entry.unlink()  # the loaded one stays as it is
    entry.write_bytes(broken)
    assert runtime.library(source).twice(3) == 6
    assert "damaged" in caplog.text
    assert len(entry.read_bytes()) == len(data)


def test_the_digest_belongs_to_one_source(cache):
    runtime.library(SOURCE)
    runtime.library(SOURCE + "\n")
    first, second = entries(cache)
    first.write_bytes(second.read_bytes())  # whole, but not what its name says
    assert not runtime.sealed.whole(first, first.stem)


def test_planted_code_is_not_run(cache):
    source = SOURCE + " /* planted */"
    runtime.library(source)
    (entry,) = entries(cache)
    planted = entry.with_name("planted.so")
    runtime._build(runtime.compiler(), SOURCE.replace("2 * x", "666"), planted, "another key")
    key = _key_of(source)
    entry.unlink()
    planted.rename(entry)
    runtime.sealed.seal(entry, key)  # a digest is no secret: who can write can sign
    entry.chmod(0o666)
    assert runtime.sealed.whole(entry, key)
    assert runtime.library(source).twice(4) == 8
    assert entry.stat().st_mode & 0o077 == 0


def _key_of(source: str) -> str:
    parts = [source, runtime.processor(), *runtime.FLAGS, *runtime.GCC_ONLY, *runtime.march()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def test_nothing_is_loaded_from_a_folder_that_others_can_write(cache):
    runtime.library(SOURCE)
    cache.parent.chmod(0o777)
    with pytest.raises(runtime.BuildError, match="other users can write to"):
        runtime.library(SOURCE)


def test_the_folder_has_a_limit(cache, monkeypatch):
    monkeypatch.setattr(runtime.cache, "LIMIT", 60_000)
    for n in range(12):
        assert runtime.library(SOURCE + f" /* number {n} */").twice(n) == 2 * n
    assert 1 <= len(entries(cache)) and sum(e.stat().st_size for e in entries(cache)) <= 60_000


def test_a_source_that_is_not_c_says_what_the_compiler_said(cache):
    with pytest.raises(runtime.BuildError, match="failed:"):
        runtime.library("this is not C")
    assert entries(cache) == []


def test_a_folder_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "file"))
    with pytest.raises(runtime.BuildError, match="GOSSAMER_CACHE"):
        runtime.library(SOURCE)


WORKER = """
import torch, gossamer as gs
torch.manual_seed(0)
a = gs.sparsify(torch.randn(9, 7), "80%", format=gs.CSR())
b = torch.randn(7, 5)
assert torch.allclose(gs.einsum("ik,kj->ij", a, b), a.to_dense() @ b, atol=1e-5)
c = gs.einsum("ik,jk->ij", a, a)
assert torch.allclose(c.to_dense(), a.to_dense() @ a.to_dense().T, atol=1e-5)
"""


def test_many_processes_at_once(tmp_path):
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([sys.executable, "-c", WORKER], env=environment) for _ in range(4)]
    assert [w.wait() for w in workers] == [0] * 4
    assert len(entries(tmp_path / "kernels")) == 2
    assert list((tmp_path / "kernels").glob(".build-*")) == []


@pytest.mark.parametrize("missing", [{"GOSSAMER_NATIVE": "0"}, {"CXX": "/nowhere/c++", "PATH": "/nowhere"}])
def test_without_a_compiler_the_answers_stay_right_and_it_is_said_once(tmp_path, missing):
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", **missing}
    done = subprocess.run(
        [sys.executable, "-c", "import logging; logging.basicConfig()" + WORKER],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gs.einsum computes on dense copies") == 1


def test_a_warm_cache_is_used_without_a_compiler(tmp_path):
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    code = "import logging; logging.basicConfig()" + WORKER
    for missing in ({}, {"CXX": "/nowhere/c++", "PATH": "/nowhere"}):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={**environment, **missing}, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "dense copies" not in done.stderr, done.stderr


WITHOUT = """
import torch, gossamer as gs
x = torch.randn(150, 170) * (torch.rand(150, 170) < 0.4)
a = gs.from_dense(x, gs.CSR())
for format in (gs.CSC(), gs.COO()):
    b = a.to_format(format)
    assert torch.equal(b.to_dense(), x) and torch.equal(b.to_format(gs.CSR()).to_dense(), x)
y = torch.randn(170, 8)
assert torch.allclose(gs.einsum("ik,kj->ij", a, y), x @ y, atol=1e-4)
assert torch.allclose(gs.einsum("ik,jk->ij", a, a).to_dense(), x @ x.T, atol=1e-4)
assert torch.allclose((a @ y), x @ y, atol=1e-4)
q, k = torch.randn(150, 32), torch.randn(170, 32)
assert torch.allclose(gs.einsum("ij,ik,jk->ij", a, q, k).to_dense(), x * (q @ k.T), atol=1e-3)
print(gs.compile("ki,kj->ij", gs.CSR(), gs.Dense()).loops)
"""


@pytest.mark.parametrize("missing", [{"GOSSAMER_NATIVE": "0"}, {"CXX": "/nowhere/c++", "PATH": "/nowhere"}])
def test_without_a_compiler_everything_works_and_plans_can_be_read(tmp_path, missing):
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", **missing}
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "for" in done.stdout
    assert not (tmp_path / "kernels").exists()


OLDER = """
import torch, gossamer as gs
torch.manual_seed(0)
def close(expression, *args, **out):
    got = gs.einsum(expression, *args, **out)
    dense = [a.to_dense() for a in args]
    want = torch.einsum(expression, *dense)
    if expression == "ij,ik,jk->ij":
        assert got.structure is args[0].structure
    assert torch.allclose(got.to_dense(), want, atol=1e-3), expression
with gs.dense_from(None):
    for dtype in (torch.float32, torch.float64):
        for density in (0.02, 0.3):
            a = gs.sparsify(torch.randn(90, 200, dtype=dtype), f"{1 - density:.0%}", format=gs.CSR())
            b = gs.sparsify(torch.randn(200, 150, dtype=dtype), f"{1 - density:.0%}", format=gs.CSR())
            close("ik,kj->ij", a, b)                                  # a workspace with bytes
            close("ij,ik,jk->ij", a, torch.randn(90, 64, dtype=dtype), torch.randn(200, 64, dtype=dtype))
            for width in (1, 7, 64, 130):
                close("ik,kj->ij", a, torch.randn(200, width, dtype=dtype))
            close("ij,j->i", a, torch.randn(200, dtype=dtype))
            assert torch.equal(a.to_format(gs.BSR((4, 4))).to_format(gs.CSC()).to_dense(), a.to_dense())
        for columns in (70_000, 5_000_000):                           # with two levels of bits, and a hash table
            keys = torch.randint(50 * columns, (3000,)).unique()
            wide = gs.core.join.from_entries(keys, torch.randn(keys.numel(), dtype=dtype), (50, columns), gs.CSR())
            left = gs.sparsify(torch.randn(8, 50, dtype=dtype), "50%", format=gs.CSR())
            got = gs.einsum("ik,kj->ij", left, wide)
            picked = keys % columns
            want = torch.zeros(8, picked.unique().numel(), dtype=dtype)
            column = torch.searchsorted(picked.unique(), picked)
            want.index_add_(1, column, left.to_dense()[:, keys // columns] * wide.values())
            assert torch.allclose(got.to_dense()[:, picked.unique()], want, atol=1e-4)
print("right")
"""


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
@pytest.mark.skipif(not runtime.available() or "x86-64" not in runtime.processor().replace("_", "-"), reason="not x86")
def test_older_instructions_give_the_same_answers(tmp_path, isa):
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "GOSSAMER_ISA": isa}
    done = subprocess.run([sys.executable, "-c", OLDER], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr
    dump = subprocess.run(["objdump", "-d", *map(str, entries(tmp_path / "kernels"))], capture_output=True, text=True)
    assert entries(tmp_path / "kernels") and "%zmm" not in dump.stdout


def test_an_older_processor_has_entries_of_its_own(cache, monkeypatch):
    runtime.library(SOURCE + " /* isa */")
    monkeypatch.setenv("GOSSAMER_ISA", "baseline")
    runtime.library(SOURCE + " /* isa */")
    assert len(entries(cache)) == (2 if runtime.march() != ("-march=native",) else 1)


@pytest.mark.skipif(not runtime.available(), reason="no C compiler")
def test_a_nest_with_all_arguments_in_one_array():
    """The pool, threads, chunks and sizes, then the arrays: the same as with an argument for each."""
    a, x = gs.from_dense(torch.tensor([[0.0, 3], [4, 0]]), gs.CSR()), torch.tensor([1.0, 2])
    plan = plan_of("ij,j->i", [a, x])
    made = []
    for quick in (True, False):
        plan.quick = quick
        made.append(plan([a.values(), x])[0].tolist())
    assert made == [[6.0, 4.0]] * 2 and runtime.call(plan.kernel.library, "fill") is not None
