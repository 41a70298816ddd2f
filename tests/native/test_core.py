"""The C++ core, alone, under the address and undefined-behaviour sanitizers."""

import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gossamer.native import compiler
from gossamer.native.recipe import units

HERE = Path(__file__).parent
SANITIZE = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra"]


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_under_sanitizers(tmp_path):
    command = [
        *compiler(),
        *SANITIZE,
        "-Wno-psabi",
        "-Wno-unknown-pragmas",
        "-Wno-aggressive-loop-optimizations",
        "-Wno-maybe-uninitialized",
    ]
    parts = {name: unit for name, unit in units(platform.machine()).items() if name != "binding"}
    folder = parts["dispatch"][0].parent
    parts["test"] = (HERE / "core_test.cpp", [f"-I{folder}"])

    def build(item):
        name, (source, flags) = item
        return subprocess.run(
            [*command, *flags, "-Werror", "-c", str(source), "-o", str(tmp_path / f"{name}.o")],
            capture_output=True,
            text=True,
        )

    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(build, parts.items()):
            assert answer.returncode == 0, answer.stderr[-4000:]
    program = tmp_path / "core_test"
    link = subprocess.run(
        [*command, *map(str, tmp_path.glob("*.o")), "-o", str(program)], capture_output=True, text=True
    )
    if "cannot find" in link.stderr and "san" in link.stderr:
        pytest.skip("the compiler has no sanitizer libraries")
    assert link.returncode == 0, link.stderr[-4000:]
    run = subprocess.run([str(program)], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("ok "), (run.stdout + run.stderr)[-6000:]
