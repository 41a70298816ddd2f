"""The wheel: kernels inside, of the sources beside them, built without torch; none where there is no compiler."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gossamer.native import compiler, recipe

ROOT = Path(__file__).parents[2]
MAKE = (
    "import json, sys, build_backend as b; print(b.build_wheel(sys.argv[1])); print(json.dumps('torch' in sys.modules))"
)

pytestmark = [
    pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake"),
    pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="not in a clone"),
]


def wheel(folder, **env):
    command = [sys.executable, "-c", MAKE, str(folder)]
    answer = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    name, torch_seen = answer.stdout.splitlines()[-2:]
    assert json.loads(torch_seen) is False
    return folder / name


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C++ compiler")
    return wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_holds_the_library_of_its_own_sources(built):
    assert f"-py3-none-linux_{platform.machine()}" in built.name
    names = set(zipfile.ZipFile(built).namelist())
    assert f"gossamer/native/gossamer_cpu-{recipe.digest()}.so" in names
    for path in recipe.SOURCES.iterdir():
        assert f"gossamer/native/cpu/{path.name}" in names
    assert "gossamer/app/bench/clone/benchmarks/cpu.py" in names
    assert not any(name.endswith("libtorch_cpu.so") for name in names)
    assert not any("benchmarks/results" in name for name in names)
    assert "gossamer/__main__.py" in names


@pytest.mark.slow
def test_is_loaded_without_a_compiler_and_gives_way_to_an_edit(built, tmp_path):
    zipfile.ZipFile(built).extractall(tmp_path / "site")
    code = """
import torch, gossamer as gs
from gossamer.app import doctor
w = gs.sparsify(torch.ones(4, 8), "50%", format=gs.formats.PackedCSR())
print(torch.nn.functional.linear(torch.ones(2, 8), w).sum().item(), doctor.kernels()["origin"])
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "GOSSAMER_CACHE": str(tmp_path), "PATH": "", "CXX": ""}

    def run():
        answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
        return answer.stdout.strip(), answer.stderr

    assert run()[0] == "32.0 the wheel"
    assert not (tmp_path / "native").exists()  # nothing was built
    nowhere = env | {"HOME": "/proc/none", "GOSSAMER_CACHE": "", "XDG_CACHE_HOME": ""}  # can't be written, even by root
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=nowhere, capture_output=True, text=True)
    assert answer.stdout.strip() == "32.0 the wheel", answer.stderr
    with (tmp_path / "site/gossamer/native/cpu/vec.h").open("a") as file:
        file.write("// edited\n")
    said, log = run()
    assert said == "32.0 None" and "no C++ compiler" in log


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
def test_needs_nothing_of_torch_but_its_stable_c_functions(built, tmp_path):
    """So that one binary serves torch 2.11 and every later one."""
    library = zipfile.ZipFile(built).extract(f"gossamer/native/gossamer_cpu-{recipe.digest()}.so", tmp_path)
    wanted = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    names = {line.split()[-1].partition("@")[0] for line in wanted.stdout.splitlines()}
    assert not [n for n in names if n.startswith(("_ZN2at", "_ZNK2at", "_ZN3c10", "_ZNK3c10", "_ZN5torch"))]
    ours = {n for n in names if "torch" in n}
    assert "torch_library_impl" in ours
    stable = ("aoti_torch_", "torch_library_", "torch_parallel_", "torch_from_blob", "torch_get_num_threads")
    assert not [n for n in ours if not n.startswith(stable)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
@pytest.mark.parametrize(("library", "newest"), [("GLIBC", (2, 28)), ("GLIBCXX", (3, 4, 24)), ("CXXABI", (1, 3, 11))])
def test_needs_no_newer_system_than_torch_does(built, tmp_path, library, newest):
    """torch's wheels are manylinux_2_28; a newer header of the compiler must not make ours newer than that."""
    path = zipfile.ZipFile(built).extract(f"gossamer/native/gossamer_cpu-{recipe.digest()}.so", tmp_path)
    wanted = subprocess.run(["nm", "-D", "--undefined-only", path], capture_output=True, text=True, check=True)
    versions = {tuple(int(n) for n in v.split(".")) for v in re.findall(rf"@{library}_([\d.]+)", wanted.stdout)}
    assert versions and max(versions) <= newest


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_a_wheel_without_kernels(tmp_path):
    made = wheel(tmp_path, CXX=shutil.which("false") or "/bin/false")
    assert made.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(made).namelist()
    assert "gossamer/native/cpu/kernels.cpp" in names
    assert not [name for name in names if name.endswith(".so")]


def test_an_editable_install_is_one_path(tmp_path):
    code = "import sys, build_backend as b; print(b.build_editable(sys.argv[1]))"
    env = {**os.environ, "PATH": "", "CXX": ""}  # neither CMake nor a compiler
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    names = zipfile.ZipFile(tmp_path / answer.stdout.splitlines()[-1])
    outside = [name for name in names.namelist() if ".dist-info/" not in name]
    assert outside == ["__editable__.gossamer.pth"]
    assert names.read(outside[0]).decode() == f"{ROOT / 'src'}\n"


@pytest.mark.slow
def test_the_source_distribution_has_what_a_wheel_needs(tmp_path):
    import tarfile

    code = "import sys, build_backend as b; print(b.build_sdist(sys.argv[1]))"
    answer = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr[-3000:]
    names = {n.partition("/")[2] for n in tarfile.open(tmp_path / answer.stdout.splitlines()[-1]).getnames()}
    for needed in (
        "CMakeLists.txt", "build_backend.py", "benchmarks/cpu.py", "tests/native/core_test.cpp", "LICENSE",
        "SECURITY.md", "tools/plain_english.py", "CITATION.cff", "docs/how-to/deploy-table.txt",
    ):  # fmt: skip
        assert needed in names
    assert {f"src/gossamer/native/cpu/{p.name}" for p in recipe.SOURCES.iterdir()} <= names
    assert "LEAD.txt" not in names
