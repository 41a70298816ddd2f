"""gs.serve: run a model that :func:`gossamer.deploy` has written."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gossamer import native
from gossamer.models.deploy.inputs import Input

__all__ = ["Served", "load"]

#: What gossamer writes into the metadata of a file.
KEY = "gossamer"


class Served:
    """A deployed model: call it as the model was called.

    Made by :func:`gossamer.deploy` and :func:`gossamer.serve.load`. Inputs are checked against those that it was
    deployed for. There are no gradients, and one call runs at a time.
    """

    def __init__(self, path: Path, loader: Any, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        self.inputs = tuple(Input.from_json(kept) for kept in about["inputs"])
        self._loader = loader
        self._keywords: list[str] = about["keywords"]
        self._arguments, self._result = (pytree.treespec_loads(text) for text in loader.get_call_spec())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns; a dataclass or a ModelOutput of transformers comes as a dict."""
        if sorted(kwargs) != sorted(self._keywords):
            given, wanted = ", ".join(kwargs) or "none", ", ".join(self._keywords) or "none"
            raise TypeError(f"the model was deployed with the keywords {wanted}; given are {given}")
        ordered = {name: kwargs[name] for name in self._keywords}
        leaves, spec = pytree.tree_flatten((args, ordered))
        if spec != self._arguments:
            names = ", ".join(each.name for each in self.inputs)
            raise TypeError(f"the model was deployed for {names}: call it with those")
        tensors = [each.check(x) for each, x in zip(self.inputs, leaves, strict=True)]
        return pytree.tree_unflatten(self._loader.boxed_run(tensors), self._result)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{i.name} {['any' if n is None else n for n in i.sizes]}" for i in self.inputs)
        return f"Served({str(self.path)!r}, {inputs})".replace("'any'", "any")


def load(path: str | Path) -> Served:
    """Load a model that :func:`gossamer.deploy` has written; the file holds machine code, so load only your own.

    Parameters
    ----------
    path
        The ``.pt2`` file.

    Returns
    -------
    Served
        To be called as the model was.

    Raises
    ------
    ValueError
        The file is not one of ``gs.deploy``.
    RuntimeError
        It was compiled for a processor that has more instructions than this one, or the kernels don't load.

    Examples
    --------
    >>> import gossamer as gs
    >>> gs.serve.load("none.pt2")
    Traceback (most recent call last):
    FileNotFoundError: there is no file none.pt2
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    about = _about(path)
    missing = sorted(set(about["processor"]) - set(processor()))
    if missing:
        raise RuntimeError(f"{path} was compiled for a processor with {', '.join(missing)}: deploy it on this machine")
    if about["kernels"] and not native.load():
        raise RuntimeError(f"{path} needs the kernels of gossamer, and there are none: {native.why_not()}")
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    return Served(path, loader, about)


def processor() -> list[str]:
    """Return the kind of processor, and its vector instructions: those that compiled code may use.

    Examples
    --------
    >>> import platform
    >>> platform.machine() in processor()
    True
    """
    found = {platform.machine()}
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("flags"):
            kinds = ("avx", "amx", "fma", "bmi", "f16c", "sse4")
            return sorted(found | {flag for flag in line.split() if flag.startswith(kinds)})
    return sorted(found)


def _about(path: Path) -> dict[str, Any]:
    """What gs.deploy has written about the model."""
    try:
        loader: Any = torch._C._aoti.AOTIModelPackageLoader
        kept = loader.load_metadata_from_package(str(path), "model")
        return json.loads(kept[KEY])
    except (RuntimeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} was not written by gs.deploy, or is damaged") from error
