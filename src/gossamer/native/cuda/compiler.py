"""CUDA C++ to machine code: by the NVRTC that torch's CUDA wheels bring, the system's, or else by nvcc."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

COMMON = ("--std=c++17", "--device-as-default-execution-space")


class CompileError(RuntimeError):
    """A kernel could not be compiled; the message holds the compiler's."""


class Nvrtc:
    """NVRTC, through its C functions.

    Parameters
    ----------
    path
        Of ``libnvrtc.so``.
    """

    def __init__(self, path: str) -> None:
        folder = Path(path).parent if os.path.isabs(path) else None
        for builtins in sorted(folder.glob("libnvrtc-builtins.so*")) if folder else ():
            ctypes.CDLL(str(builtins))  # NVRTC opens it by name, from wherever the loader looks; not so far away
        self._lib: Any = ctypes.CDLL(path)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"nvrtc {major.value}.{minor.value}"

    def compile(self, source: str, name: str, arch: str, flags: Sequence[str], folder: Path) -> bytes:
        """Return the machine code of a source for an architecture such as ``sm_90a``."""
        options = [f"--gpu-architecture={arch}", f"-I{folder}", *COMMON, *flags]
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        program = ctypes.c_void_p()
        made = self._lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        self._check(made)
        try:
            if self._lib.nvrtcCompileProgram(program, len(options), encoded):
                raise CompileError(f"{self.version} can't compile {name} for {arch}:\n{self._log(program)}")
            size = ctypes.c_size_t()
            self._check(self._lib.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            code = ctypes.create_string_buffer(size.value)
            self._check(self._lib.nvrtcGetCUBIN(program, code))
            return code.raw
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(size.value, 1))
        self._lib.nvrtcGetProgramLog(program, log)
        return log.value.decode(errors="replace")[-4000:]

    def _check(self, error: int) -> None:
        if error:
            raise CompileError(f"NVRTC failed: {self._lib.nvrtcGetErrorString(error).decode()}")


class Nvcc:
    """nvcc, for a machine with the toolkit but without NVRTC."""

    def __init__(self, path: str) -> None:
        self._path = path
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"release ([\d.]+)", said)
        self.version = f"nvcc {found[1] if found else 'of unknown version'}"

    def compile(self, source: str, name: str, arch: str, flags: Sequence[str], folder: Path) -> bytes:
        """Return the machine code of a source for an architecture such as ``sm_90a``."""
        target = f"-gencode=arch=compute_{arch[3:]},code={arch}"
        with tempfile.TemporaryDirectory() as work:
            out = Path(work) / "kernel.cubin"
            (Path(work) / name).write_text(source)
            command = [self._path, "-cubin", target, f"-I{folder}", "--std=c++17", *flags, "-o", str(out)]
            said = subprocess.run([*command, str(Path(work) / name)], capture_output=True, text=True, check=False)
            if said.returncode:
                raise CompileError(f"{self.version} can't compile {name} for {arch}:\n{said.stderr[-4000:]}")
            return out.read_bytes()


@lru_cache(maxsize=1)
def compiler() -> Nvrtc | Nvcc:
    """Return the compiler of kernels: the first NVRTC that loads, else nvcc; CompileError if there is neither."""
    for path in _libraries():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError, CompileError):
            continue
    if nvcc := shutil.which("nvcc"):
        return Nvcc(nvcc)
    raise CompileError(
        "no NVRTC to compile GPU kernels with: torch's CUDA wheels bring one (pip install nvidia-cuda-nvrtc); "
        "or name a libnvrtc.so in $GOSSAMER_NVRTC"
    )


def _libraries() -> Iterator[str]:
    """Where an NVRTC may be, the best place first."""
    if named := os.environ.get("GOSSAMER_NVRTC"):
        yield named
        return
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        # nvidia/cu13/lib since CUDA 13, nvidia/cuda_nvrtc/lib before
        yield from sorted((str(p) for p in Path(folder).glob("*/lib/libnvrtc.so*")), reverse=True)
    torch = importlib.util.find_spec("torch")
    for folder in (torch.submodule_search_locations or []) if torch else []:
        yield from (str(p) for p in sorted(Path(folder).glob("lib/libnvrtc*.so*")) if "builtins" not in p.name)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    yield from (str(p) for p in sorted(Path(home).glob("lib64/libnvrtc.so*")))
