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
        assert (pictures.FIGURES / f"{name}.svg").read_text() == picture, "run python docs/pictures.py"
    page = (DOCS / "explanation" / "pictures.md").read_text()
    assert all(f"figures/{name}.svg" in page for name in drawn)


def test_every_pattern_is_drawn(pictures):
    public = {c for c in vars(gs).values() if isinstance(c, type) and issubclass(c, Pattern)} - {Pattern}
    assert {type(as_pattern(how)) for how, *_ in pictures.PATTERNS.values()} == public


def test_pictures_differ_where_formats_differ(pictures):
    """N:M with groups is stored as N:M without; all others have a picture of their own."""
    drawn = {
        name: pictures.memory(*what).partition("\n")[2] for name, what in pictures.FORMATS.items()
    }  # not its label
    assert len(set(drawn.values())) == len(drawn)


def test_bars_are_as_long_as_the_arrays_have_bytes(pictures):
    t = gs.sparsify(pictures.weight((32, 32)), "75%", format=gs.CSR())
    text = "\n".join(pictures.arrays(t, 0))
    assert "values: 256 x float32" in text and "pos1: 33 x int32" in text and "crd1: 256 x int32" in text
    assert f"h{256 * 4 * pictures.SCALE:.1f}" in text and f"h{33 * 4 * pictures.SCALE:.1f}" in text
