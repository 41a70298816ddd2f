"""CUDA kernels without a GPU: every source compiles, the cache keeps and mends itself, launches say what went wrong."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import wgmma_cuh
from gossamer.kernels.bitmap import plan as bitmap_plan
from gossamer.kernels.shared_columns import items_of
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import plan_many
from gossamer.native.cuda import SOURCES

ELEMENTS = [{"ELEMENT": e} for e in (0, 1, 2)]
#: What the plan asks for: every shape of a block, order and type once, activations in turn.
FEW = [
    vnm_plan.few(tokens, rows, 4096, v, m, (9, 0), element, (element + tokens) % 4, 132).macros
    for tokens, rows, v, m, element in (
        (8, 64, 0, 4, 0), (16, 64, 64, 8, 1), (9, 20000, 0, 8, 0), (16, 64, 0, 16, 1), (5, 64, 16, 8, 1),
        (16, 20000, 0, 32, 0), (3, 64, 0, 100, 0), (8, 4096, 0, 4, 0), (16, 9000, 0, 16, 0),
    )
]  # fmt: skip
FEW_BEFORE = [vnm_plan.few(16, 64, 4096, v, m, (8, 0), 0, 0, 108).macros for v, m in ((0, 4), (0, 8), (0, 16), (16, 8))]
MANY = [
    plan_many.many(4096, rows, 64, v, m, order, element, activation, 132).macros
    for rows, v, m, order, element, activation in (
        (4096, 0, 8, (False, False), 0, 0),
        (4096, 128, 8, (False, True), 1, 1),
        (4096, 64, 16, (False, False), 0, 2),
        (64, 0, 4, (True, True), 1, 3),
        (4096, 0, 4, (False, False), 0, 0),
        (4096, 0, 4, (True, True), 1, 2),
        (1024, 256, 8, (False, True), 0, 2),
        (1023, 256, 8, (False, True), 0, 0),
    )
]
SOME = [
    vnm_plan.some(tokens, rows, 64, element, element, 132, weight, ahead).macros
    for tokens, rows, element, weight, ahead in (
        (8, 14336, 1, 0, False), (16, 4096, 0, 0, True), (32, 14336, 1, 1, True), (64, 2048, 0, 2, True),
        (128, 14336, 1, 0, True),
    )
]  # fmt: skip
SOME += [vnm_plan.some(tokens, rows, 64, 1, 0, 132, group=True).macros for tokens, rows in ((1, 6144), (64, 28672))]
SOME += [
    vnm_plan.some(tokens, 14336, 64, 1, activation, 132, weight, gated=True).macros
    for tokens, activation, weight in ((1, 3, 0), (64, 2, 1), (16, 1, 2))
]
WEIGHT_ONLY = [vnm_plan.few(8, 14336, 4096, 0, m, (9, 0), w % 2, 0, 132, w).macros for m in (4, 8) for w in (1, 3)]
MANY_8BIT = [
    plan_many.many(4096, rows, 64, 0, 4, (True, True), 1, 0, 132, w).macros for rows, w in ((4096, 1), (1023, 2))
]
MANY += [plan_many.many(2048, 7168, 64, 0, 4, (True, True), 1, 3, 132, weight, gated=True).macros for weight in (0, 1)]
QUANTIZE = [
    vnm_plan.quantize(8, 4096, m, 32, m % 2, w, 132, wide).macros
    for m, w, wide in ((4, 1, False), (8, 2, False), (4, 1, True))
]
BITMAP = {
    arch: [bitmap_plan.product(n, rows, 4096, 1408, capability, n % 2, 0, 132).macros for n, rows in sizes]
    for arch, capability, sizes in (
        ("80", (8, 0), [(8, 64)]),
        ("90a", (9, 0), [(1, 14336), (16, 4096), (32, 4096), (8, 14336), (64, 14336)]),
    )
}
BITMAP["90a"] += [
    bitmap_plan.product(n, rows, 4096, 1424, (9, 0), n % 2, 0, 132, weight=1).macros
    for n, rows in ((1, 14336), (16, 4096), (8, 14336), (64, 14336))
]
CHOOSE_SHARED = [
    {"ITEM": i, "ELEMENT": e, "GROUP": m, "CHUNK": chunk, "ITEMS": len(items_of(m, chunk))}
    for i, e, m, chunk in ((2, 0, 8, 4), (2, 1, 16, 8), (4, 2, 8, 4), (4, 2, 5, 4), (4, 2, 32, 8), (8, 2, 32, 8))
]
#: Every source, the architectures it is for, and the macros it is built with.
BUILDS = {
    "attention.cu": {
        "80": [{"ELEMENT": 0, "WIDTH": 128, "HIGH": 1, "PARTS": 0}],
        "90a": [{"ELEMENT": 1, "WIDTH": width, "HIGH": 2, "PARTS": 1} for width in (16, 64)],
    },
    "decode.cu": {
        "80": [{"ELEMENT": 0, "WIDTH": 64, "MASKED": 1, "PARTS": 0}],
        "90a": [{"ELEMENT": 1, "WIDTH": 128, "MASKED": masked, "PARTS": parts} for masked, parts in ((0, 1), (1, 0))],
    },
    "csr.cu": {a: [{"ELEMENT": e, "WIDE": w} for e, w in ((0, 8), (1, 2), (2, 1))] for a in ("80", "90a")},
    "transpose.cu": {"90a": [{"ELEMENT": 0}, {"ELEMENT": 2}]},
    "vnm_any.cu": {"80": ELEMENTS},
    "vnm_decode.cu": {"80": ELEMENTS},
    "vnm_compact.cu": {"90a": ELEMENTS},
    "bitmap.cu": BITMAP,
    "bitmap_dense.cu": {"80": ELEMENTS},
    "bitmap_planes_dense.cu": {"80": [{"ELEMENT": 0}]},
    "choose.cu": {
        "80": [
            {"ITEM": i, "ELEMENT": 2, "KEPT": n, "GROUP": m}
            for i, n, m in ((2, 2, 4), (4, 2, 4), (8, 1, 4), (4, 2, 16))
        ]
    },
    "choose_shared.cu": {"80": CHOOSE_SHARED},
    "choose_top.cu": {"80": [{"ITEM": i, "ELEMENT": 2, "RANKS": r} for i in (2, 4, 8) for r in (1, 2)]},
    "clear.cu": {"80": [{"ITEM": item, "ELEMENT": 2} for item in (2, 4, 8)]},
    "quantize.cu": {"90a": QUANTIZE},
    "transposable.cu": {"80": [{"ELEMENT": 2}]},
    "vnm_fill.cu": {
        "80": [{"ELEMENT": e, "SOURCE": s, "TURNED": t} for e in (0, 1) for s in (0, 1) for t in (0, 1)],
        "90a": [{"ELEMENT": 1, "SOURCE": 1, "TURNED": 1}],
    },
    "vnm_few.cu": {"80": FEW_BEFORE, "90a": FEW + WEIGHT_ONLY},
    "vnm_many.cu": {"90a": MANY + MANY_8BIT},
    "vnm_some.cu": {"90a": SOME},
}


def test_every_source_is_built_here():
    assert {path.name for path in SOURCES.glob("*.cu")} == set(BUILDS)


def test_what_is_written_by_a_program_is_as_it_writes_it():
    assert wgmma_cuh.FILE.read_text() == wgmma_cuh.text()


def build(path, macros, arch, folder):
    """Compile a source with nvcc; return what it complains of."""
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    flags = [f"-D{name}={value}" for name, value in macros.items()]
    out = folder / f"{arch}-{hash(tuple(flags))}"
    command = ["nvcc", "-cubin", target, "--std=c++17", *flags, "-Werror=all-warnings", "-o", str(out), str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{path.name} {macros} sm_{arch}\n{said.stderr}" if said.returncode else ""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("source", sorted(BUILDS))
def test_sources_compile(source, tmp_path):
    wanted = [(macros, arch) for arch, every in BUILDS[source].items() for macros in every]
    with ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(lambda pair: build(SOURCES / source, *pair, tmp_path), wanted) if text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_kernels_of_the_benchmark_compile(tmp_path):
    assert not build(Path(wgmma_cuh.__file__).parent / "ceilings.cu", {}, "90a", tmp_path)
