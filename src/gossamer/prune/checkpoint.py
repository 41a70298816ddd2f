"""Checkpoints: a folder with one file per finished layer, and a description of the task."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.methods import Layer
from gossamer.prune.report import LayerReport, layer_from_dict

_PAGE = "progress.json"
_VERSION = 3


class Checkpoint:
    """Finished layers in a folder. Every file is written under a temporary name first and then renamed.

    Parameters
    ----------
    folder
        Created if it doesn't exist.
    task
        A description of the task, as plain values; a folder of another task is refused.
    layers
        The layers to prune, with their dense weights, by which the model is recognised.
    """

    def __init__(self, folder: str | os.PathLike[str], task: dict[str, Any], layers: dict[str, Layer]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        page = self.folder / _PAGE
        self.done: dict[str, dict[str, Any]] = {}
        if page.exists():
            self.page = json.loads(page.read_text(encoding="utf-8"))
            self._check(task, layers)
            self.done = self.page["done"]
        else:
            prints = {name: fingerprint(layer.matrix(layer.dense())) for name, layer in layers.items()}
            self.page = {"version": _VERSION, "task": task, "weights": prints, "done": self.done}
            self._write_page()

    def _check(self, task: dict[str, Any], layers: dict[str, Layer]) -> None:
        if self.page["version"] != _VERSION:
            raise ValueError(f"{self.folder} was written by another version of gossamer: choose another folder")
        then, now = self.page["task"], json.loads(json.dumps(task))
        if then != now:
            differs = [key for key in {**then, **now} if then.get(key) != now.get(key)]
            raise ValueError(
                f"{self.folder} belongs to another run: {', '.join(differs)} differ"
                f"{'s' if len(differs) == 1 else ''} ({_shown(then, differs)} there, {_shown(now, differs)} now). "
                "Choose another folder, or delete this one."
            )
        for name, layer in layers.items():
            if name not in self.page["done"] and fingerprint(layer.matrix(layer.dense())) != self.page["weights"][name]:
                raise ValueError(f"{self.folder} belongs to another model: the values of {name!r} differ")

    def save(self, name: str, weight: Tensor, mask: Tensor, dense: Tensor, report: LayerReport) -> None:
        """Save a finished layer and its dense weight, which later layers need if they follow the dense model."""
        from safetensors.torch import save_file

        file = f"layer-{list(self.page['weights']).index(name):04d}.safetensors"
        tensors = {"weight": weight, "mask": mask, "dense": dense}
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        temporary = self.folder / f".{file}.{os.getpid()}"
        save_file(tensors, temporary, metadata={"name": name})
        os.replace(temporary, self.folder / file)
        self.done[name] = {"file": file, "report": asdict(report)}
        self._write_page()

    def load(self, name: str, layer: Layer) -> tuple[Tensor, Tensor, LayerReport]:
        """Return a finished layer: its weight and its mask as matrices, and its report."""
        weight, mask = (self._read(name, layer, part) for part in ("weight", "mask"))
        if mask.dtype != torch.bool:
            raise ValueError(f"{self.folder / self.done[name]['file']} has a mask of {mask.dtype}, not bool")
        return weight, mask, layer_from_dict(self.done[name]["report"])

    def dense(self, name: str, layer: Layer) -> Tensor:
        """Return what a finished layer was before, as a matrix."""
        return self._read(name, layer, "dense")

    def _read(self, name: str, layer: Layer, part: str) -> Tensor:
        from safetensors import safe_open

        path, shape = self.folder / self.done[name]["file"], (layer.outputs, layer.inputs)
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(part)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{path} doesn't fit {name!r} of shape {shape}")
        return tensor

    def _write_page(self) -> None:
        temporary = self.folder / f".{_PAGE}.{os.getpid()}"
        temporary.write_text(json.dumps(self.page, indent=1), encoding="utf-8")
        os.replace(temporary, self.folder / _PAGE)


def fingerprint(weight: Tensor) -> str:
    """A few numbers that identify the values of a weight.

    Examples
    --------
    >>> import torch
    >>> fingerprint(torch.ones(2, 2))
    '(2, 2) 4.0 4.0 2.0'
    """
    w = weight.detach().double().reshape(-1)
    pattern = torch.arange(len(w), device=w.device, dtype=torch.float64).remainder(2)
    return f"{tuple(weight.shape)} {float(w.sum())!r} {float(w @ w)!r} {float(w @ pattern)!r}"


def _shown(task: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key}={str(task.get(key))[:60]}" for key in keys)
