"""gs.save: write a model or its tensors to a file, one tensor at a time, completely or not at all."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Masked
from gossamer.formats.values import cleared
from gossamer.io.container import NAMES, Entry, Header, memory, place
from gossamer.io.parts import Record, is_plain, take_apart
from gossamer.models.modules import part_of
from gossamer.models.weights import Weight

#: The version of what stands under "gossamer" in the metadata of a file. 2: the columns of n:m take half a byte.
VERSION = 2
#: Versions that are read.
KNOWN = (1, 2)
#: Versions of files of ``save_pretrained``, whose parts are named ``weight_values`` instead of ``weight:values``.
FOLDERS = (3,)
_UNKNOWN = "0" * 64  # until the bytes have been written
_Size = tuple[torch.dtype, tuple[int, ...]]


def save(model: nn.Module | Mapping[str, Tensor], path: str | os.PathLike[str], *, dense: bool = False) -> None:
    """Write a model to a safetensors file; sparse tensors keep their formats.

    The file is written under a temporary name, flushed to disk and then renamed, so that the old file stays complete if
    the process is killed. Tensors are written one by one, without a second copy of the model. The metadata contains the
    format, shape and arrays of each sparse tensor, and SHA-256 digests, which :func:`gossamer.load` checks.

    Parameters
    ----------
    model
        A module (its parameters and persistent buffers are saved, tied ones once), or a mapping from names to tensors.
        A mapping may create each tensor on access, which happens twice, so a model larger than memory can be written.
    path
        The file, usually ``*.safetensors``.
    dense
        Write sparse and quantized weights as dense ones, zeros included, for programs without gossamer.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Linear(8, 8), "75%", format=gs.CSR())
    >>> gs.save(model, "model.safetensors")
    >>> gs.load(torch.nn.Linear(8, 8), "model.safetensors").weight.format
    CSR()
    """
    tensors = state_of(model) if isinstance(model, nn.Module) else model
    if dense and isinstance(model, nn.Module):
        tensors = _dequantized(model, tensors)
    if not isinstance(tensors, Mapping):
        raise TypeError(f"gs.save takes a module or a mapping from names to tensors, not a {type(model).__name__}")
    tied = _tied(tensors) if isinstance(model, nn.Module) else {}
    names = [name for name in tensors if name not in tied]
    records: dict[str, Record] = {}
    sizes: dict[str, _Size] = {}
    for name in names:
        own, record = _described(name, tensors[name], dense)
        if record is not None:
            records[name] = record
        for key, size in own.items():
            if key in sizes or key == "__metadata__":
                raise ValueError(f"two tensors of the file would be called {key!r}: rename one of them")
            sizes[key] = size
    entries = place(sizes)
    page = {"version": VERSION, "names": names, "tensors": records, "tied": tied}
    digests = dict.fromkeys(entries, _UNKNOWN)
    with replacing(path) as file:
        start = file.write(_header(entries, page, digests).encode())
        for name in names:
            digests.update(_write(file, start, entries, name, tensors[name], dense, records.get(name)))
        file.seek(0)
        file.write(_header(entries, page, digests).encode())


def _described(name: str, tensor: Any, dense: bool) -> tuple[dict[str, _Size], Record | None]:
    if dense and isinstance(tensor, SparseTensor):
        return {name: (_known(name, tensor._values), tuple(tensor._dense_shape))}, None
    parts, record = _parts(name, tensor, dense)
    return {key: (_known(key, part), tuple(part.shape)) for key, part in parts.items()}, record


def _write(
    file: BinaryIO, start: int, entries: dict[str, Entry], name: str, tensor: Any, dense: bool, record: Record | None
) -> dict[str, str]:
    """Write the arrays of one tensor to their places; return their digests. Nothing of it is held afterwards."""
    parts, now = _parts(name, tensor, dense)
    digests = {}
    for key, part in _copies(parts, tensor).items():
        entry = entries.get(key)
        if now != record or entry is None or (entry.dtype, entry.shape) != (NAMES.get(part.dtype), tuple(part.shape)):
            raise ValueError(f"{name!r} changed while it was written: a mapping must give the same tensor twice")
        whole = memory(part)
        file.seek(start + entry.begin)
        file.write(whole)
        digests[key] = hashlib.sha256(whole).hexdigest()
    return digests


def _copies(parts: dict[str, Tensor], tensor: Any) -> dict[str, Tensor]:
    """Return copies on the CPU: a model that trains meanwhile must not change what is hashed, nor a mask alone."""
    own = {key: part.detach().cpu().contiguous() for key, part in parts.items()}
    own = {key: part.clone() if part.data_ptr() == parts[key].data_ptr() else part for key, part in own.items()}
    if len(own) == 2 and isinstance(tensor, SparseTensor) and isinstance(tensor.format, Masked):
        (key, values), (_, mask) = own.items()
        own[key] = cleared(values, mask.view(values.shape))
    return own


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return weights and persistent buffers by name, sparse weights as SparseTensors.

    Names are those of the dense model. Tied tensors are the same object.
    """
    found: dict[str, Any] = {}
    made: dict[int, SparseTensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        path, _, last = name.rpartition(".")
        weight, part = part_of(model.get_submodule(path), last)
        if weight is None:
            found[name] = tensor
        elif part == "values":
            key = f"{path}.{weight}" if path else weight
            own = Weight(key, ((model.get_submodule(path), weight),), (key,))
            found[key] = made.setdefault(id(tensor), own.sparse())
    return {name: made.get(id(tensor), tensor) for name, tensor in found.items()}  # only one place has a mask buffer


def _dequantized(model: nn.Module, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a model with the weights of quantized layers as dense tensors."""
    state = dict(tensors)
    made: dict[int, nn.Module] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if hasattr(module, "as_dense"):
            layer = made.setdefault(id(module), module.as_dense())
            prefix = f"{path}." if path else ""
            state = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
            state |= {prefix + name: tensor for name, tensor in layer.state_dict(keep_vars=True).items()}
    return state


def _tied(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Names of tensors that are there under an earlier name already."""
    first: dict[int, str] = {}
    return {name: first[id(t)] for name, t in tensors.items() if first.setdefault(id(t), name) != name}


def _clean(target: Path) -> None:
    """Remove what saves to this file have left that were killed: their processes are gone."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        process = part.name.split(".")[-3]
        if process.isdecimal() and not Path(f"/proc/{process}").exists():
            part.unlink(missing_ok=True)


def _parts(name: str, tensor: Any, dense: bool) -> tuple[dict[str, Tensor], Record | None]:
    if isinstance(tensor, SparseTensor):
        if tensor._values.device.type == "meta":
            raise ValueError(f"{name!r} is on the meta device, where there is no data to save")
        if not dense:
            return take_apart(name, tensor)
        tensor = tensor.detach().to_dense()
    if not is_plain(tensor):
        what = f"a {type(tensor).__name__}" + (f" on {tensor.device}" if isinstance(tensor, Tensor) else "")
        raise TypeError(f"{name!r} is {what}; plain tensors with data and SparseTensors can be saved")
    return {name: tensor}, None


def _known(name: str, tensor: Tensor) -> torch.dtype:
    if tensor.dtype not in NAMES:
        raise TypeError(f"{name!r} is {tensor.dtype}, which safetensors has no name for")
    return tensor.dtype


def _header(entries: dict[str, Entry], page: dict[str, Any], digests: dict[str, str]) -> Header:
    page = {**page, "sha256": digests}
    page["header"] = digest_of(entries, page)
    text = json.dumps(page, separators=(",", ":"), ensure_ascii=False)
    return Header(entries, {"format": "pt", "gossamer": text}, 0)


def digest_of(entries: dict[str, Entry], page: dict[str, Any]) -> str:
    """Return the SHA-256 of a header, in a canonical form."""
    said = {"tensors": {n: e.as_dict() for n, e in entries.items()}, "page": page}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` on success, and is removed on any error.

    Examples
    --------
    >>> with replacing("notes.txt") as file:
    ...     _ = file.write(b"whole or not at all")
    """
    target = Path(os.path.realpath(path))
    _clean(target)
    part = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "wb")
    except OSError as error:  # it names the temporary file, which means nothing to the caller
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    try:
        with file:
            with suppress(OSError):  # a private file stays private
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on the disk, too
    finally:
        os.close(folder)
