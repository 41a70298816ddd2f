"""The pictures of the docs are those that the code would draw today, and no pattern is left out."""

import importlib.util
from pathlib import Path

import pytest

import gossamer as gs
from gossamer.patterns import Pattern, as_pattern

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_as_drawn_today(pictures):
    drawn = {f"pattern-{name}": pictures.pattern(*what) for name, what in pictures.PATTERNS.items()}
    drawn |= {f"format-{name}": pictures.memory(*what) for name, what in pictures.FORMATS.items()}
    for name, picture in drawn.items():
        assert (pictures.FIGURES / f"{name}.svg").read_text() == picture, "python docs/pictures.py draws it anew"
    page = (DOCS / "explanation" / "pictures.md").read_text()
    assert all(f"figures/{name}.svg" in page for name in drawn)


def test_every_pattern_is_drawn(pictures):
    public = {c for c in vars(gs).values() if isinstance(c, type) and issubclass(c, Pattern)} - {Pattern}
    assert {type(as_pattern(how)) for how, *_ in pictures.PATTERNS.values()} == public
