"""The C++ core, alone: under the sanitizers, by another compiler, for another processor."""

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gossamer.native import compiler
from gossamer.native.recipe import flags, units

HERE = Path(__file__).parent
CPU = Path("/proc/cpuinfo")
HAS_AVXVNNI = CPU.exists() and "avx_vnni" in CPU.read_text()
HAS_TILES = CPU.exists() and "amx_int8" in CPU.read_text()
SANITIZE = ["-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra"]
QUIET = [
    "-Wno-psabi",
    "-Wno-unknown-pragmas",
    "-Wno-aggressive-loop-optimizations",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]


def build(command, machine, folder, link=()):
    """Build core_test with the units of a machine; what the linker said, if it failed, and the program."""
    parts = {name: unit for name, unit in units(machine).items() if not name.startswith("binding")}
    defined = []
    if "int8_avxvnni" in parts and not HAS_AVXVNNI:  # tested by the same instructions of AVX-512
        source, own = parts["int8_avxvnni"]
        same = ["-mavx512f", "-mavx512vl", "-mavx512vnni"]
        parts["int8_avxvnni"] = source, [*(flag for flag in own if flag != "-DAVXVNNI"), *same]
        defined = ["-DEMULATED_AVXVNNI"]
    if "int8_amx" in parts and not HAS_TILES:  # tested with tiles that are arrays
        parts["int8_amx"][1].append("-DEMULATED_TILES")
        parts["tiles_amx"][1].append("-DEMULATED_TILES")
        defined.append("-DEMULATED_TILES")
    parts["test"] = (HERE / "core_test.cpp", [f"-I{parts['dispatch'][0].parent}", *defined])

    def one(item):
        name, (source, own) = item
        words = [*command, *own, "-c", str(source), "-o", str(folder / f"{name}.o")]
        return subprocess.run(words, capture_output=True, text=True)

    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(one, parts.items()):
            assert answer.returncode == 0, answer.stderr[-4000:]
    words = [*command, *link, *map(str, folder.glob("*.o")), "-o", str(folder / "core_test")]
    return subprocess.run(words, capture_output=True, text=True), folder / "core_test"


def assert_ok(*command):
    run = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("ok "), (run.stdout + run.stderr)[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a dozen files, each several times as long to compile as without the sanitizers
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_under_sanitizers(tmp_path):
    linked, program = build([*compiler(), *SANITIZE, *QUIET, "-Werror"], platform.machine(), tmp_path)
    if "cannot find" in linked.stderr and "san" in linked.stderr:
        pytest.skip("the compiler has no sanitizer libraries")
    assert linked.returncode == 0, linked.stderr[-4000:]
    assert_ok(program)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang (Debian: apt-get install clang)")
def test_built_by_clang(tmp_path):
    linked, program = build(["clang++", *flags(), "-Wall", "-Werror"], platform.machine(), tmp_path)
    assert linked.returncode == 0, linked.stderr[-4000:]
    assert_ok(program)


@pytest.mark.slow
@pytest.mark.skipif(
    None in (shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")),
    reason="no compiler for AArch64 or nothing that runs it (Debian: apt-get install g++-aarch64-linux-gnu qemu-user)",
)
def test_built_for_arm_and_run_by_qemu(tmp_path):
    linked, program = build(["aarch64-linux-gnu-g++", *flags()], "aarch64", tmp_path, ["-static"])
    assert linked.returncode == 0, linked.stderr[-4000:]
    assert_ok("qemu-aarch64", program)
