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

import click
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from gossamer.io.compressed import Compressed, compressed_config

#: Tables that are looked up, not multiplied with: skipped in files, which don't say what a tensor is for.
LOOKUPS = ("*embed*", "*wte*", "*wpe*", "*position*")
#: Outputs and inputs of a linear layer, and the type of its weight.
Layer = tuple[tuple[int, int], torch.dtype]


@dataclass(frozen=True)
class Opened:
    """A model and where it came from."""

    path: Path
    model: nn.Module
    folder: bool

    @property
    def longest(self) -> int:
        """The largest number of tokens that the model accepts."""
        return int(getattr(getattr(self.model, "config", None), "max_position_embeddings", None) or 1 << 30)

    @property
    def reads_images(self) -> bool:
        """Whether the model is called with images, so that a number of tokens means nothing to it."""
        return self.folder and getattr(self.model, "main_input_name", "") == "pixel_values"

    def fitting(self, tokens: int) -> int:
        """Return this number of tokens, or the largest that the model accepts; a note says so."""
        if tokens > self.longest:
            click.echo(
                f"{self.path} accepts at most {self.longest} tokens: using {self.longest}, not {tokens}", err=True
            )
        return min(tokens, self.longest)

    def example(self, tokens: int, batch: int = 1) -> Any:
        """Return inputs of this size for a folder; None for a file, which doesn't say how its layers are connected."""
        if not self.folder:
            return None
        config: Any = self.model.config
        name = str(getattr(self.model, "main_input_name", "input_ids"))
        if name == "pixel_values":
            side = getattr(config, "image_size", None) or 224
            height, width = side if isinstance(side, list | tuple) else (side, side)
            dtype = next(self.model.parameters()).dtype
            return {name: torch.randn(batch, getattr(config, "num_channels", 3), height, width, dtype=dtype)}
        if name != "input_ids":
            raise ValueError(
                f"{self.path}: a model that is called with {name!r} needs Python: gs.pack_(model, example)"
            )
        ids = torch.randint(config.get_text_config().vocab_size, (batch, min(tokens, self.longest)))
        return {name: ids} | ({"decoder_input_ids": ids} if config.is_encoder_decoder else {})


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
    """Write a model in the form in which it was read: a folder with all its other files, or a file; completely or not
    at all."""
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
        raise ValueError(f"{out} exists: choose another name, or use --force to replace it")
    if out.exists() and out.is_dir() != opened_is_folder:
        kind = "folder" if out.is_dir() else "file"
        raise ValueError(f"{out} is a {kind}, and the result is not: choose another name")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise ValueError(f"{out} can't be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{out} can't be written: you have no permission to write to {parent}")


def batches_of(opened: Opened, texts: str | os.PathLike[str], samples: int, length: int) -> list[dict[str, Tensor]]:
    """Return the lines of a text file as inputs of a model: one text per line, without empty lines."""
    if not opened.folder:
        raise ValueError(
            f"calibration needs a transformers folder; {opened.path} is a file, which takes --method magnitude"
        )
    try:
        lines = [line.strip() for line in Path(texts).read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{texts}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    lines = [line for line in lines if line][:samples]
    if not lines:
        raise ValueError(f"{texts}: no text in it; one text on each line is expected")
    tokenizer = _tokenizer(opened.path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    encoded = [
        tokenizer(
            lines[i : i + 8], return_tensors="pt", padding=True, truncation=True, max_length=min(length, opened.longest)
        )
        for i in range(0, len(lines), 8)
    ]
    batches = [{name: batch[name] for name in ("input_ids", "attention_mask") if name in batch} for batch in encoded]
    if getattr(opened.model.config, "is_encoder_decoder", False):
        for batch in batches:
            batch["decoder_input_ids"] = batch["input_ids"]
    return batches


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    missing = ValueError(
        f"{path}: no tokenizer, which --calibration needs: leave it out to prune by magnitude, "
        "or call gs.prune.oneshot in Python with your own inputs"
    )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise missing from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # from a config alone, transformers makes one without words
        raise missing
    return tokenizer


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
    chosen: Any = (kinds or [transformers.AutoModel])[0]
    try:
        if compressed_config(path) is not None:
            return _of_compressed(path, chosen)
        transformers.utils.logging.set_verbosity_error()  # its report of missing weights: the error below is shorter
        model, found = chosen.from_pretrained(path, local_files_only=True, output_loading_info=True)
    except (OSError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path}: can't be loaded: {error}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        some = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ValueError(f"{path}: {len(missing)} weights of {chosen.__name__} are not in the checkpoint: {some}")
    loaded: nn.Module = model
    return loaded


def _of_compressed(path: Path, kind: Any) -> nn.Module:
    """A checkpoint of compressed-tensors with bitmasks, as a dense model with zeros, which `pack` finds."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(path, local_files_only=True)
    for name in ("quantization_config", "compression_config"):
        if hasattr(config, name):
            delattr(config, name)
    with Compressed(path) as weights:
        state = {name: tensor.to_dense() for name, tensor in weights.items()}
    return kind.from_pretrained(None, config=config, state_dict=state)


def _of_file(path: Path) -> nn.Module:
    from gossamer.app.inspecting import tensors_in

    tensors = tensors_in(str(path))
    small = _quantized_in(path, tensors)
    root = nn.Module()
    for owner, (shape, dtype) in {**_matrices_in(tensors), **small}.items():
        bias = tensors.get(f"{owner}.bias" if owner else "bias")
        has_bias = bias is not None and tuple(bias.shape) == (shape[0],)
        root = _put(root, owner, nn.Linear(shape[1], shape[0], bias=has_bias, dtype=dtype))
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        module = _module(root, owner)
        if last not in module._parameters and owner not in small:
            module.register_buffer(
                last, torch.empty_like(tensor.to_dense() if tensor.layout != torch.strided else tensor)
            )
    _fill(root, path, tensors)
    return root


def _matrices_in(tensors: dict[str, Tensor]) -> dict[str, Layer]:
    """Return the layers with a weight in floating point."""
    matrices = {name: tensor for name, tensor in tensors.items() if _is_matrix(name, tensor)}
    return {name.rpartition(".")[0]: ((t.shape[0], t.shape[1]), t.dtype) for name, t in matrices.items()}


def _quantized_in(path: Path, tensors: dict[str, Tensor]) -> dict[str, Layer]:
    """Return the layers in int8, by name; ValueError for those whose shape only their model knows."""
    from gossamer.core.tensor import SparseTensor
    from gossamer.io.rows import is_int8
    from gossamer.kernels.int8.weight import parts

    found: dict[str, Layer] = {}
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        prefix = f"{owner}." if owner else ""
        if last == "weight" and isinstance(tensor, SparseTensor) and tensor.dtype is torch.int8:
            found[owner] = (tensor.shape[0], tensor.shape[1]), torch.float32
        elif last == "packed" and is_int8(tensor):
            sizes = parts(tensor).sizes
            if sizes.kernel_w:
                raise ValueError(
                    f"{path} has int8 convolutions, whose strides only their model knows: use gs.load in Python"
                )
            found[owner] = (sizes.rows, sizes.cols), torch.float32
        elif last.endswith("format") and {f"{prefix}{last[:-6]}{part}" for part in ("values", "scale")} <= set(tensors):
            raise ValueError(f"{path} has quantized layers whose shapes only their model knows: use gs.load in Python")
    if "" in found:
        raise ValueError(f"{path} is a single quantized layer: use gs.load in Python")
    return found


def _is_matrix(name: str, tensor: Tensor) -> bool:
    if name.rpartition(".")[2] != "weight" or tensor.dim() != 2 or not tensor.is_floating_point():
        return False
    return not any(fnmatch(name.lower(), pattern) for pattern in LOOKUPS)


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

    own = set(tensors) != set(root.state_dict())  # quantized layers have other names
    if own or any(isinstance(tensor, SparseTensor) for tensor in tensors.values()):
        load(root, path)
    else:
        root.load_state_dict(tensors)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder next to ``out`` that replaces it on success, and is removed on any error."""
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}-") as work:
        folder = Path(work) / "new"
        folder.mkdir()
        yield folder
        if out.exists():
            out.rename(Path(work) / "old")
        folder.rename(out)
