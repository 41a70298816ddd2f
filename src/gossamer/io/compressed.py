"""Checkpoints of compressed-tensors (Neural Magic, LLM Compressor): sparse-bitmask and sparse-24-bitmask.

compressed-tensors and transformers no longer read these checkpoints, but many are still on the Hub. A sparse weight is
three arrays: ``compressed`` (its values), ``bitmask`` (a bit for each position, rows padded to bytes, lowest bit first)
and ``shape``. Values of 8 bits have a ``weight_scale``. Everything is checked, as in our own files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats import CSR
from gossamer.io.container import BadFile, Reader, read_json

_PARTS = ("bitmask", "shape")  # besides "compressed"
#: Beside a weight: rounding, which is undone here, and activations, which are not rounded here.
_BESIDE = ("row_offsets", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "output_scale",
           "k_scale", "v_scale")  # fmt: skip
_SMALL = (torch.int8, torch.float8_e4m3fn)


class Compressed(Mapping[str, Tensor]):
    """A compressed-tensors checkpoint as a mapping from names to tensors, read and checked one at a time.

    Sparse weights become :class:`gossamer.SparseTensor` in CSR; values of 8 bits are multiplied by their scale. Other
    tensors are unchanged. Use it in a ``with`` statement. To convert a checkpoint, pass it to :func:`gossamer.save`.

    Parameters
    ----------
    path
        A safetensors file, or a model folder with one or more of them.

    Examples
    --------
    >>> import torch, safetensors.torch, gossamer as gs
    >>> arrays = {"fc.compressed": torch.tensor([1.0, 2.0]), "fc.bitmask": torch.tensor([[1], [4]], dtype=torch.uint8)}
    >>> safetensors.torch.save_file(arrays | {"fc.shape": torch.tensor([2, 3])}, "bitmask.safetensors")
    >>> with gs.io.Compressed("bitmask.safetensors") as weights:
    ...     weights["fc.weight"].to_dense()
    tensor([[1., 0., 0.],
            [0., 0., 2.]])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._readers: list[Reader] = []
        self._where: dict[str, Reader] = {}  # by name of an array
        try:
            for file in self._files():
                self._readers.append(reader := Reader(file))
                for key in reader.header.entries:
                    if key in self._where:
                        raise reader.bad(f"{key!r} is in {self._where[key].path.name}, too")
                    self._where[key] = reader
            self._sparse = self._find()
        except BaseException:
            self.__exit__()
            raise
        parts = {f"{prefix}.{part}" for prefix in self._sparse.values() for part in ("compressed", *_PARTS, *_BESIDE)}
        plain = [key for key in self._where if key not in parts and not key.endswith(tuple(f".{b}" for b in _BESIDE))]
        self._names = dict.fromkeys([*self._sparse, *plain])

    def __enter__(self) -> Compressed:
        return self

    def __exit__(self, *error: object) -> None:
        for reader in self._readers:
            reader.__exit__()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:  # a Mapping's own would read the tensor
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        prefix = self._sparse.get(name)
        if prefix is not None:
            return self._weight(name, prefix)
        tensor, scale = self._read(name), self._scale(name)
        return tensor if scale is None else tensor.to(scale.dtype) * _rows(scale, tensor.shape, self._bad(name))

    # -- what is there

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{self.path}: no safetensors file in it")
        return files

    def _find(self) -> dict[str, str]:
        """Names of sparse weights, each with the prefix of its arrays: of the layer, or (older) of the weight."""
        if packed := next((key for key in self._where if key.endswith(".weight_packed")), None):
            raise self._where[packed].bad(
                f"{packed!r} has several values in a word (pack-quantized, marlin-24), which is not supported"
            )
        found = {}
        for key, reader in self._where.items():
            if key.endswith(".compressed"):
                prefix = key.removesuffix(".compressed")
                missing = [part for part in _PARTS if f"{prefix}.{part}" not in self._where]
                if missing:
                    raise reader.bad(f"{prefix!r} has values but no {' and no '.join(missing)}")
                name = prefix if prefix.endswith("weight") else f"{prefix}.weight"
                if name in self._where or name in found:
                    raise reader.bad(f"{name!r} occurs twice: compressed and as it is")
                found[name] = prefix
        return found

    def _read(self, key: str) -> Tensor:
        return self._where[key].read(key)

    def _bad(self, name: str) -> Any:
        key = name if name in self._where else f"{self._sparse[name]}.compressed"
        return lambda what: self._where[key].bad(f"{name!r}: {what}")

    # -- one weight

    def _weight(self, name: str, prefix: str) -> SparseTensor:
        bad = self._bad(name)
        values, bits, given = (self._read(f"{prefix}.{part}") for part in ("compressed", *_PARTS))
        shape = _shape(given, bits, bad)
        mask = _unpacked(bits, shape, bad)
        counts = mask.sum(1)
        if int(counts.sum()) != values.numel():
            raise bad(f"the bitmask keeps {int(counts.sum())} values, and there are {values.numel()}")
        offsets = f"{prefix}.row_offsets"
        begins = torch.cumsum(counts, 0) - counts
        if offsets in self._where and not torch.equal(self._read(offsets).flatten().long(), begins):
            raise bad("row_offsets don't agree with the bitmask")
        values = values.flatten()
        if (scale := self._scale(name)) is not None:
            each = _rows(scale, shape, bad).expand(shape[0], 1).flatten().repeat_interleave(counts)
            values = values.to(scale.dtype) * each
        elif values.dtype in _SMALL:
            raise bad(f"values of {values.dtype} need a weight_scale, and there is none")
        pos = torch.cat([torch.zeros(1, dtype=torch.long), torch.cumsum(counts, 0)])
        return SparseTensor.from_arrays(CSR(), shape, values, {"pos1": pos, "crd1": mask.nonzero()[:, 1]})

    def _scale(self, name: str) -> Tensor | None:
        """What the 8-bit values of a weight are multiplied by; None where they are no 8-bit values."""
        owner = name.removesuffix("weight")
        key = f"{owner}weight_scale"
        if key not in self._where or not name.endswith("weight"):
            return None
        zero = f"{owner}weight_zero_point"
        if zero in self._where and bool((self._read(zero).float() != 0).any()):
            raise self._bad(name)("its values have a zero point other than 0, which is not supported")
        scale = self._read(key)
        if not scale.is_floating_point():
            raise self._bad(name)(f"weight_scale is of {scale.dtype}, must be floating point")
        return scale


def _shape(given: Tensor, bits: Tensor, bad: Any) -> tuple[int, int]:
    """Return the shape of a weight, which the bitmask must have room for: so memory is bounded by the file."""
    if given.is_floating_point() or given.dtype is torch.bool or given.numel() != 2:
        raise bad(f"shape must be two integers, got {given.numel()} of {given.dtype}")
    rows, columns = (int(n) for n in given.flatten().tolist())
    if rows < 0 or columns < 0 or tuple(bits.shape) != (rows, math.ceil(columns / 8)) or bits.dtype != torch.uint8:
        raise bad(f"a weight of {rows} x {columns} has no bitmask of {tuple(bits.shape)} in {bits.dtype}")
    return rows, columns


def _unpacked(bits: Tensor, shape: tuple[int, int], bad: Any) -> Tensor:
    """Return the mask: eight positions a byte, the lowest bit first."""
    eight = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    mask = eight.flatten(1).bool()
    if bool(mask[:, shape[1] :].any()):
        raise bad(f"the bitmask keeps columns beyond the last of {shape[1]}")
    return mask[:, : shape[1]]


def _rows(scale: Tensor, shape: tuple[int, ...], bad: Any) -> Tensor:
    """Return a scale for each row, or one for all."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.numel() != shape[0]:
        raise bad(
            f"a scale of {tuple(scale.shape)} for {tuple(shape)}: only one scale in total, or one per row, is supported"
        )
    return scale.reshape(-1, 1)


def compressed_config(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the compressed-tensors entry of ``config.json`` if weights are stored sparse; else None.

    Examples
    --------
    >>> import json, pathlib
    >>> said = {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}
    >>> _ = pathlib.Path("config.json").write_text(json.dumps({"quantization_config": said}))
    >>> compressed_config(".")["sparsity_config"]["format"]
    'sparse-bitmask'
    """
    config = Path(folder) / "config.json"
    try:
        page = read_json(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadFile(f"{config}: not a configuration of transformers: {str(error)[:200]}") from None
    said = page.get("quantization_config") or page.get("compression_config") if isinstance(page, dict) else None
    if not isinstance(said, dict) or said.get("quant_method", "compressed-tensors") != "compressed-tensors":
        return None
    sparsity = said.get("sparsity_config")
    kind = sparsity.get("format") if isinstance(sparsity, dict) else None
    return said if kind in ("sparse-bitmask", "sparse-24-bitmask") else None
