"""The build backend: scikit-build-core's, but an editable install is one plain path.

scikit-build-core's own editable installs put a finder before ``sys.path``: it wraps every module's loader, and a
``PYTHONPATH`` that names another clone would be passed over. There is nothing to compile in one (the kernels are built
at first use), so a path is all it needs.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as _core
from scikit_build_core.build import build_sdist, build_wheel, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

SOURCES = Path(__file__).parent / "src"


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what an editable install needs besides scikit-build-core: neither CMake nor a compiler."""
    return []


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Write a wheel that holds the metadata and the path of the sources; return its name."""
    with tempfile.TemporaryDirectory() as folder:
        name = _core.build_editable(folder, config_settings, metadata_directory)
        with zipfile.ZipFile(Path(folder, name)) as theirs:
            files = {path: theirs.read(path) for path in theirs.namelist() if ".dist-info/" in path}
    record = next(path for path in files if path.endswith("/RECORD"))
    del files[record]
    files["__editable__.gossamer.pth"] = f"{SOURCES}\n".encode()
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
