"""Models on disk, for the commands that change them: transformers folders and safetensors files, read and written."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

#: Tables that are looked up, not multiplied with: left alone in files, which don't say what a tensor is for.
LOOKUPS = ("*embed*", "*wte*", "*wpe*", "*position*")


@dataclass(frozen=True)
class Opened:
    """A model and where it came from."""

    path: Path
    model: nn.Module
    folder: bool

    @property
    def longest(self) -> int:
        """The most tokens that the model takes at once."""
        return int(getattr(getattr(self.model, "config", None), "max_position_embeddings", None) or 1 << 30)

    def example(self, tokens: int, batch: int = 1) -> Any:
        """Return inputs of this size for a folder; None for a file, whose layers are known but not how they connect."""
        if not self.folder:
            return None
        config: Any = self.model.config
        name = str(getattr(self.model, "main_input_name", "input_ids"))
        if name == "pixel_values":
            side = config.image_size
            height, width = side if isinstance(side, list | tuple) else (side, side)
            return {name: torch.randn(batch, config.num_channels, height, width)}
        if name != "input_ids":
            raise ValueError(
                f"{self.path}: a model that is called with {name!r} needs Python: gs.pack_(model, example)"
            )
        return {name: torch.randint(config.vocab_size, (batch, min(tokens, self.longest)))}


def open_model(path: str | os.PathLike[str]) -> Opened:
    """Return the model of a transformers folder, or of a safetensors file as a tree of linear layers and tensors.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.save(gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(8, 4)), "75%"), "opened.safetensors")
    >>> open_model("opened.safetensors").model.get_submodule("0").weight.sparsity
    0.75
    """
    path = Path(path)
    if path.is_dir():
        return Opened(path, _of_folder(path).eval(), True)
    return Opened(path, _of_file(path).eval(), False)


def save_model(opened: Opened, out: str | os.PathLike[str], *, dense: bool = False) -> None:
    """Write a model as it was read: a folder with everything else that was in it, or a file. All of it, or nothing."""
    from gossamer.io import save
    from gossamer.models import densify_

    if not opened.folder:
        save(opened.model, out, dense=dense)
        return
    if dense:
        densify_(opened.model)
    with _new_folder(Path(out)) as folder:
        opened.model.save_pretrained(folder)  # type: ignore[operator]
        for file in opened.path.iterdir():  # the tokenizer, and what else belongs to the model
            if (
                file.is_file()
                and not file.name.startswith(("model", "pytorch_model"))
                and not (folder / file.name).exists()
            ):
                shutil.copy2(file, folder / file.name)


def check_target(out: str | os.PathLike[str], opened_is_folder: bool, force: bool) -> None:
    """Raise ValueError if the result can't be written there, before any work is done."""
    out = Path(out)
    if out.exists() and not force:
        raise ValueError(f"{out} exists: choose another name, or replace it by --force")
    if out.exists() and out.is_dir() != opened_is_folder:
        kind = "folder" if out.is_dir() else "file"
        raise ValueError(f"{out} is a {kind}, and the result is not: choose another name")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"{out.absolute().parent} is not a folder")


def batches_of(opened: Opened, texts: str | os.PathLike[str], samples: int, length: int) -> list[dict[str, Tensor]]:
    """Return the lines of a text file as inputs of a model: one text a line, empty lines left out."""
    if not opened.folder:
        raise ValueError(
            f"calibration needs a transformers folder; {opened.path} is a file, which takes --method magnitude"
        )
    lines = [line.strip() for line in Path(texts).read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line][:samples]
    if not lines:
        raise ValueError(f"{texts}: no text in it; one text a line is expected")
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(opened.path, local_files_only=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    encoded = [
        tokenizer(
            lines[i : i + 8], return_tensors="pt", padding=True, truncation=True, max_length=min(length, opened.longest)
        )
        for i in range(0, len(lines), 8)
    ]
    return [{name: batch[name] for name in ("input_ids", "attention_mask") if name in batch} for batch in encoded]


def _of_folder(path: Path) -> nn.Module:
    config = path / "config.json"
    if not config.is_file():
        raise ValueError(f"{path}: no config.json; a folder must be one that transformers' save_pretrained has written")
    try:
        names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{config}: not a configuration of transformers: {error}") from None
    import transformers

    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    kinds = [kind for name in names if (kind := getattr(transformers, str(name), None)) is not None]
    if names and not kinds:
        raise ValueError(f"{config}: this transformers has no {names[0]!r}")
    try:
        return (kinds or [transformers.AutoModel])[0].from_pretrained(path, local_files_only=True)
    except (OSError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path}: can't be loaded: {error}") from error


def _of_file(path: Path) -> nn.Module:
    from gossamer.app.inspecting import tensors_in

    tensors = tensors_in(str(path))
    root = nn.Module()
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        if last == "weight" and _is_matrix(name, tensor):
            bias = tensors.get(f"{owner}.bias" if owner else "bias")
            rows, cols = tensor.shape
            has_bias = bias is not None and tuple(bias.shape) == (rows,)
            layer = nn.Linear(cols, rows, bias=has_bias, dtype=tensor.dtype)
            root = _put(root, owner, layer)
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        module = _module(root, owner)
        if last not in module._parameters:
            module.register_buffer(
                last, torch.empty_like(tensor.to_dense() if tensor.layout != torch.strided else tensor)
            )
    _fill(root, path, tensors)
    return root


def _is_matrix(name: str, tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.is_floating_point() and not any(fnmatch(name.lower(), p) for p in LOOKUPS)


def _put(root: nn.Module, owner: str, layer: nn.Module) -> nn.Module:
    if not owner:
        return layer
    above, _, last = owner.rpartition(".")
    _module(root, above).add_module(last, layer)
    return root


def _module(root: nn.Module, name: str) -> nn.Module:
    for part in filter(None, name.split(".")):
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _fill(root: nn.Module, path: Path, tensors: dict[str, Tensor]) -> None:
    from gossamer.core.tensor import SparseTensor
    from gossamer.io import load

    if any(isinstance(tensor, SparseTensor) for tensor in tensors.values()):
        load(root, path)
    else:
        root.load_state_dict(tensors)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that takes its place when all went well; on any error there is no trace of it."""
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}-") as work:
        folder = Path(work) / "new"
        folder.mkdir()
        yield folder
        if out.exists():
            out.rename(Path(work) / "old")
        folder.rename(out)
