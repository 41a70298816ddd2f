"""The reference is complete: every public name of gossamer and of its rooms stands on a page."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import gossamer as gs

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ROOMS = [name for name in gs.__all__ if inspect.ismodule(getattr(gs, name))]


def documented() -> set[str]:
    """The names after `:::`, and what whole modules among them export."""
    names = set()
    for page in REFERENCE.glob("*.md"):
        for path in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            names.add(path.rpartition(".")[2])
            try:
                module = importlib.import_module(path)
            except ImportError:
                continue
            if hasattr(module, "__path__") or module.__name__ == path:
                names |= set(getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]))
    return names


def test_every_public_name_is_in_the_reference():
    missing = set(gs.__all__) - set(ROOMS) - documented()
    assert not missing, f"no page of docs/reference has {sorted(missing)}"


@pytest.mark.parametrize("room", [*ROOMS, "patterns", "scores", "app.bench"])
def test_every_name_of_a_room_is_in_the_reference(room):
    module = getattr(gs, room, None) or importlib.import_module(f"gossamer.{room}")
    missing = set(getattr(module, "__all__", ())) - documented()
    assert not missing, f"no page of docs/reference has {sorted(missing)} of gossamer.{room}"
