"""The page of a pruning run."""

from types import SimpleNamespace

import pytest

from gossamer.report.pruning import _error, _number, page


def layer(name, error=None, notes=()):
    return SimpleNamespace(
        name=name, shape=(4, 8), pattern="2:4", sparsity=0.5, kept_energy=0.8, error=error, seconds=1.5, notes=notes
    )


def run(**changes):
    fields = {
        "method": "Wanda", "layers": (layer("a", 0.25), layer("b", 0.0001, ("note <1>",))), "before": 0.9, "after": 0.8,
        "seconds": 12.34, "notes": ("one note",), "history": (), "sparsity": 0.45, "taken": "2 weights", "error": 0.125,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


def sections(made):
    return [section.title for section in made.sections]


def test_the_page_by_hand():
    made = page(run())
    assert made.title == "Pruned by Wanda" and made.text == "metric 0.9 -> 0.8; one note; 2 weights"
    assert sections(made) == ["Layers", "Sparsity by layer", "Error by layer"]
    html = made.html()
    for text in ("45.0%", "12.3 s", "0.1250", "4 x 8", "80.0%", "1.50", "0.2500", "1.00e-04", "note &lt;1&gt;"):
        assert text in html, text


def test_what_is_not_known_is_left_out():
    made = page(run(before=None, after=None, error=None, layers=(layer("a"),), notes=()))
    assert made.text == "2 weights" and sections(made) == ["Layers", "Sparsity by layer"]
    assert "mean error" not in made.html() and "–" in made.html()
    assert page(run(before=None)).text.startswith("metric ? -> 0.8")
    assert "Error by layer" not in sections(page(run(layers=(layer("a", 0.1), layer("b", 0.0)))))


def test_stages_on_the_way():
    stages = (
        {"stage": 1, "patterns": ["50%", "2:4"], "sparsity": 0.5, "error": 0.1, "pruned": 0.7, "trained": 0.85},
        {"stage": 2, "patterns": ["75%"], "sparsity": 0.75, "error": None, "pruned": 0.6},
    )
    made = page(run(history=stages))
    assert sections(made)[-1] == "On the way"
    html = made.sections[-1].body
    assert "50% 2:4" in html and "dense: 90.00% at 0.0% sparsity" in html and "stage 1: 85.00% at 50.0%" in html
    assert "stage 2:" not in html  # it was not trained
    assert "<svg" not in page(run(before=None, history=stages)).sections[-1].body  # one point alone


def test_many_layers_have_bars_for_the_first():
    html = page(run(layers=tuple(layer(f"l{n}") for n in range(70)))).sections[1].body
    assert "l59" in html and "l60" not in html


@pytest.mark.parametrize(
    ("value", "text"), [(0.001, "0.0010"), (0.00099, "9.90e-04"), (1.5, "1.5000"), (0.0, "0.00e+00")]
)
def test_errors(value, text):
    assert _error(value) == text
    assert _number(None) == "?" and _number(0.123456) == "0.1235"
