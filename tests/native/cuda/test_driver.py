"""The CUDA driver through ctypes, without a GPU: what a launch hands over, and what went wrong."""

import ctypes
import struct
import threading

import pytest
import torch

from gossamer.native.cuda import CudaError, driver


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


@pytest.mark.parametrize(
    ("parameters", "offsets", "places"),
    [
        ("P i q", [0, 8, 16], [0, 8, 16]),
        ("i i P", [0, 4, 8], [0, 4, 8]),
        ("PPiii 128s", [0, 28], [0, 8, 16, 20, 24, 28]),
        ("i PPi 4s", [0, 8, 28], [0, 8, 16, 24, 28]),
    ],
)
def test_where_parameters_and_arguments_lie(parameters, offsets, places):
    assert driver._offsets(parameters) == offsets and driver.places_of(parameters) == places


@pytest.mark.parametrize(("capability", "name"), [((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((10, 0), "sm_100")])
def test_architectures(monkeypatch, capability, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert driver.architecture(0) == name


def test_a_function_is_loaded_once_for_each_request(lib, monkeypatch):
    loaded = []
    monkeypatch.setattr(driver, "_functions", {})
    monkeypatch.setattr(driver, "architecture", lambda device: "sm_80")
    monkeypatch.setattr(
        driver, "cubin", lambda source, arch, macros, text: f"{text or source} {arch} {sorted(macros.items())}".encode()
    )
    monkeypatch.setattr(driver, "_load", lambda *args: loaded.append(args) or ctypes.c_void_p(len(loaded)))
    first = driver.function("one.cu", "f", 0, "P", shared=4, A=1)
    assert driver.function("one.cu", "f", 0, "P", shared=4, A=1) is first and loaded[0][0] == b"one.cu sm_80 [('A', 1)]"
    others = [
        driver.function("two.cu", "f", 0, "P", shared=4, A=1),
        driver.function("one.cu", "g", 0, "P", shared=4, A=1),
        driver.function("one.cu", "f", 1, "P", shared=4, A=1),
        driver.function("one.cu", "f", 0, "P", shared=8, A=1),
        driver.function("one.cu", "f", 0, "P", shared=4, A=2),
        driver.function("one.cu", "f", 0, "P i", shared=4, A=1),
        driver.function("one.cu", "f", 0, "P", shared=4, chained=True, A=1),
    ]
    assert len({id(f) for f in (first, *others)}) == 8
    written = driver.generated("void f() {}", "f", 0, "P")
    assert driver.generated("void f() {}", "f", 0, "P") is written and loaded[-1][0] == b"void f() {} sm_80 []"
    assert others[-1].chained and others[-2].parameters == "P i" and others[3].shared == 8
