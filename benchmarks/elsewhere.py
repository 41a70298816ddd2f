"""Check and measure the CPU kernels on a machine that has torch and a C++ compiler, and nothing else.

    python benchmarks/elsewhere.py [--out FOLDER] [--quick]

1. the C++ core against its own reference, under the sanitizers where the compiler has them;
2. F.linear with every packed format against float64, for every instruction set that the processor has;
3. benchmarks/cpu.py.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]


def core() -> None:
    """Build and run tests/native/core_test.cpp."""
    from gossamer.native import compiler
    from gossamer.native.recipe import units

    parts = {name: unit for name, unit in units(platform.machine()).items() if not name.startswith("binding")}
    parts["test"] = (ROOT / "tests/native/core_test.cpp", [f"-I{parts['dispatch'][0].parent}"])
    command = compiler()
    assert command, "no C++ compiler"
    for sanitize in (["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], []):
        with tempfile.TemporaryDirectory() as folder:
            base = [*command, "-std=c++17", "-O1", "-Wno-psabi", *sanitize]
            for name, (source, flags) in parts.items():
                subprocess.run([*base, *flags, "-c", str(source), "-o", f"{folder}/{name}.o"], check=True)
            link = subprocess.run(
                [*base, *(f"{folder}/{name}.o" for name in parts), "-o", f"{folder}/test"], check=False
            )
            if link.returncode == 0:
                answer = subprocess.run([f"{folder}/test"], capture_output=True, text=True, check=False)
                kind = "with" if sanitize else "without"
                print(f"core, {kind} sanitizers: {answer.stdout.strip()}{answer.stderr[-2000:]}")
                assert answer.returncode == 0
                return


def formats() -> None:
    """Compare F.linear and its gradients with float64, for one instruction set."""
    import torch
    import torch.nn.functional as F

    import gossamer as gs
    from gossamer import native

    cases = (
        ("90%", gs.formats.PackedCSR()),
        ("50%", gs.formats.PackedCSR(240)),
        ("2:4", gs.formats.PackedNM(2, 4)),
        ("1:10:g4", gs.formats.PackedGroupedNM(1, 10, 4)),
        ("1:40", gs.formats.PackedNM(1, 40)),
    )
    assert native.load(), native.why_not()
    torch.manual_seed(0)
    for how, format in cases:
        for shape in ((1, 1), (17, 31), (400, 129), (48, 500)):
            weight = gs.sparsify(torch.randn(shape), how, format=format).requires_grad_()
            dense = weight.detach().to_dense().double()
            for tokens in (1, 3, 8, 17, 33, 65):
                x = torch.randn(tokens, shape[1], requires_grad=True)
                out = F.linear(x, weight)
                bound = (shape[1] + 2) * 2.0**-24 * F.linear(x.double().abs(), dense.abs())
                assert torch.all((out.double() - F.linear(x.double(), dense)).abs() <= bound), (how, shape, tokens)
                gx, gw = torch.autograd.grad(out.sum(), (x, weight))
                torch.testing.assert_close(gx.double(), dense.sum(0).expand_as(gx), rtol=1e-4, atol=1e-4)
                want = torch.where(weight.mask(), x.detach().sum(0), 0)
                torch.testing.assert_close(gw.to_dense(), want, rtol=1e-4, atol=1e-4)
    print(f"formats, {native.isa()}: right")


def main() -> None:
    if "--formats" in sys.argv:
        formats()
        return
    core()
    for isa in ("avx512", "avx2", "baseline"):  # one that the processor lacks is answered by the best that it has
        command = [sys.executable, __file__, "--formats"]
        subprocess.run(command, env={**os.environ, "GOSSAMER_ISA": isa}, check=True)
    from benchmarks import cpu

    cpu.main()


if __name__ == "__main__":
    main()
