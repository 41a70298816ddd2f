"""CUDA kernels without a GPU: every source compiles, the cache keeps and mends itself, launches say what went wrong."""

import ctypes
import shutil
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from benchmarks import wgmma_cuh
from gossamer.kernels.bitmap import plan as bitmap_plan
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import plan_many
from gossamer.native.cuda import SOURCES, CompileError, CudaError, cache, driver
from gossamer.native.cuda.compiler import Nvcc
from gossamer.native.cuda.compiler import compiler as find_compiler

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
WEIGHT_ONLY = [vnm_plan.few(8, 14336, 4096, 0, m, (9, 0), w % 2, 0, 132, w).macros for m in (4, 8) for w in (1, 3)]
MANY_8BIT = [
    plan_many.many(4096, rows, 64, 0, 4, (True, True), 1, 0, 132, w).macros for rows, w in ((4096, 1), (1023, 2))
]
QUANTIZE = [vnm_plan.quantize(8, 4096, m, 32, m % 2, w, 132).macros for m, w in ((4, 1), (8, 2))]
BITMAP = {
    arch: [bitmap_plan.product(n, rows, 4096, 2100, capability, n % 2, 0, 132).macros for n, rows in sizes]
    for arch, capability, sizes in (("80", (8, 0), [(8, 64)]), ("90a", (9, 0), [(1, 14336), (16, 4096), (32, 4096)]))
}
#: Every source, the architectures it is for, and the macros it is built with.
BUILDS = {
    "csr.cu": {a: [{"ELEMENT": e, "WIDE": w} for e, w in ((0, 8), (1, 2), (2, 1))] for a in ("80", "90a")},
    "transpose.cu": {"90a": [{"ELEMENT": 0}, {"ELEMENT": 2}]},
    "vnm_any.cu": {"80": ELEMENTS},
    "vnm_decode.cu": {"80": ELEMENTS},
    "vnm_compact.cu": {"90a": ELEMENTS},
    "bitmap.cu": BITMAP,
    "bitmap_dense.cu": {"80": ELEMENTS},
    "clear.cu": {"80": [{"ITEM": item, "ELEMENT": 2} for item in (2, 4, 8)]},
    "quantize.cu": {"90a": QUANTIZE},
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


class FakeCompiler:
    version = "fake 1.0"

    def __init__(self):
        self.calls = []

    def compile(self, source, name, arch, flags, folder):
        self.calls.append((name, arch, tuple(flags)))
        return f"{source}|{arch}|{flags}".encode() * 3


@pytest.fixture
def fake(monkeypatch, tmp_path):
    made = FakeCompiler()
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "compiler", lambda: made)
    (tmp_path / "one.cu").write_text("kernel")
    return made, tmp_path


def test_compiled_once_for_each_request(fake):
    made, folder = fake
    first = cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    assert cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder) == first
    assert made.calls == [("one.cu", "sm_80", ("-DA=1",))]
    cache.cubin("one.cu", "sm_90a", {"A": 1}, folder=folder)
    cache.cubin("one.cu", "sm_80", {"A": 2}, folder=folder)
    (folder / "header.cuh").write_text("changed")
    cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    (folder / "one.cu").write_text("another kernel")
    cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    made.version = "fake 2.0"
    cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    assert len(made.calls) == 6


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"x" + b[41:]])
def test_a_damaged_file_is_made_anew(fake, damage):
    made, folder = fake
    first = cache.cubin("one.cu", "sm_80", {}, folder=folder)
    (file,) = (folder / "cache" / "cuda").glob("*.cubin")
    file.write_bytes(damage(file.read_bytes()))
    assert cache.cubin("one.cu", "sm_80", {}, folder=folder) == first
    assert cache.cubin("one.cu", "sm_80", {}, folder=folder) == first
    assert len(made.calls) == 2


def test_a_cache_that_cannot_be_written_is_only_slower(fake, monkeypatch):
    made, folder = fake
    (folder / "file").write_text("")
    monkeypatch.setenv("GOSSAMER_CACHE", str(folder / "file" / "below"))
    assert cache.cubin("one.cu", "sm_80", {}, folder=folder) == cache.cubin("one.cu", "sm_80", {}, folder=folder)
    assert len(made.calls) == 2


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


class FakeDriver:
    """Remembers launches; refuses what it is told to refuse."""

    def __init__(self):
        self.launched, self.pushed, self.errors, self.mapped, self.chained = [], 0, [], [], []
        self.size = 8  # bytes of arguments

    def cuLaunchKernelEx(self, config, handle, parameters, extra):
        gx, gy, gz, tx, _, _, shared, stream, attributes, count = driver._CONFIG.unpack(
            ctypes.string_at(config, driver._CONFIG.size)
        )
        error = self.errors.pop(0) if self.errors else 0
        if not error:
            arguments = ctypes.string_at(ctypes.c_void_p.from_address(parameters).value, self.size)
            self.launched.append(((gx, gy, gz), tx, shared, stream, arguments))
            self.chained = [ctypes.string_at(attributes + 72 * n, 72) for n in range(count)]
        return error

    def cuTensorMapEncodeTiled(self, at, *rest):
        self.mapped.append((at, *rest))
        ctypes.memset(at, 7, 128)
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.pushed += 1
        return 0

    def cuCtxPopCurrent_v2(self, context):
        self.pushed -= 1
        return 0

    def cuGetErrorName(self, error, out):
        out._obj.value = b"CUDA_ERROR_NOTHING_WORKS"
        return 0

    def cuGetErrorString(self, error, out):
        out._obj.value = b"nothing works"
        return 0


@pytest.fixture
def lib(monkeypatch):
    made = FakeDriver()
    monkeypatch.setattr(driver, "driver", lambda: made)
    monkeypatch.setattr(driver, "primary_context", lambda device: ctypes.c_void_p(7))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 1234 + device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    return made


def test_a_launch_packs_its_arguments(lib):
    lib.size = 48
    run = driver.Function(ctypes.c_void_p(1), 0, "one", "P q i f PPi 4s", 512)
    run((3, 2, 1), 128, 99, -5, 7, 0.5, 11, 12, 13, b"last")
    expected = struct.pack("@PqifPPi4s", 99, -5, 7, 0.5, 11, 12, 13, b"last")
    assert lib.launched == [((3, 2, 1), 128, 512, 1234, expected)] and lib.chained == []
    assert driver._offsets("P q i f PPi 4s") == [0, 8, 16, 20, 24, 44]


def test_every_launch_has_its_own_shape_and_stream(lib):
    run = driver.Function(ctypes.c_void_p(1), 0, "one", "q", 512)
    for grid, threads, stream in (((3, 2, 1), 128, 1), ((3, 2, 1), 128, 2), ((3, 2, 1), 64, 2), ((4, 2, 1), 64, 2)) * 2:
        run._stream = lambda device, stream=stream: stream
        run(grid, threads, 7)
        assert lib.launched[-1] == (grid, threads, 512, stream, struct.pack("q", 7))


def test_a_chained_launch_says_so(lib):
    driver.Function(ctypes.c_void_p(1), 0, "one", "q", 0, True)((1, 1, 1), 32, 1)
    assert [struct.unpack_from("@i4xi", each) for each in lib.chained] == [(6, 1)]


def test_a_tensor_map_is_made_once(lib):
    made = [driver.tensor_map(4096, 100, 30, 208, 64) for _ in range(3)]
    ((at, kind, rank, address, sizes, strides, box, steps, *rest),) = lib.mapped
    assert at % 64 == 0 and (kind, rank, address) == (1, 2, 4096) and rest == [0, 3, 0, 0]
    assert [list(each) for each in (sizes, strides, box, steps)] == [[100, 30], [208], [64, 64], [1, 1]]
    assert made == [bytes([7]) * 128] * 3
    driver.tensor_map.cache_clear()


def test_a_refused_launch_says_why(lib):
    lib.errors = [1]
    with pytest.raises(CudaError, match=r"launching one with a grid of \(3, 2, 1\) x 128 threads failed: CUDA_ERROR_N"):
        driver.Function(ctypes.c_void_p(1), 0, "one", "q", 0)((3, 2, 1), 128, 1)


def test_a_thread_without_a_context_is_lent_one(lib):
    lib.errors = [201]
    driver.Function(ctypes.c_void_p(1), 0, "one", "q", 0)((1, 1, 1), 32, 1)
    assert len(lib.launched) == 1 and lib.pushed == 0


def test_another_device_than_the_current_one(lib):
    driver.Function(ctypes.c_void_p(1), 1, "one", "q", 0)((1, 1, 1), 32, 1)
    assert lib.launched[0][3] == 1235 and lib.pushed == 0


def test_threads_do_not_share_arguments(lib):
    run = driver.Function(ctypes.c_void_p(1), 0, "one", "q", 0)

    def many(number):
        for _ in range(300):
            run((number, 1, 1), 32, number)

    threads = [threading.Thread(target=many, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lib.launched) == 1200
    assert all(struct.unpack("q", arguments) == (grid[0],) for grid, *_, arguments in lib.launched)
