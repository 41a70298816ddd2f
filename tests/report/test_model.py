"""What a report says, as plain data and as a page."""

import json
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.native import Ceilings
from gossamer.report.layers import LayerFacts, Timed
from gossamer.report.model import ModelReport, _bytes
from gossamer.report.page import Html, Section


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def fact(model="", name="fc", sparsity=0.5, shape=(4, 8), times=((100.0, 50.0),)):
    cases = tuple(Timed(f"{n + 1} tokens", n + 1, dense, us) for n, (dense, us) in enumerate(times))
    return LayerFacts(model, name, shape, "2:4", "CSR()", sparsity, 16, 1500, 3000, "linear", "native", cases)


def test_sums_by_hand():
    made = ModelReport("t", "m", (fact(), fact(name="out", sparsity=0.0, shape=(4, 24), times=((200.0, 250.0),))))
    assert made.models == ("",) and made.tokens == ("1 tokens",)
    assert made.sparsity() == 0.5 * 32 / (32 + 96) and made.gain("1 tokens") == 300 / 300
    assert made.gain("nothing") is None and made.sparsity("nobody") == 0


def test_models_are_told_apart():
    made = ModelReport("t", "m", (fact("a"), fact("b", sparsity=0.9, times=((100.0, 25.0),)), fact("a", "out")))
    assert made.models == ("a", "b") and made.sparsity("b") == pytest.approx(0.9)
    assert (made.gain("1 tokens", "a"), made.gain("1 tokens", "b")) == (2.0, 4.0)
    assert ">model<" in made.page().html() and "model" in str(made)
    assert ">model<" not in ModelReport("t", "m", (fact(),)).page().html()


def sections(made, *first):
    return [section.title for section in made.page(*first).sections]


def test_sections_are_those_that_there_is_something_for():
    plain = ModelReport("t", "m", (fact(sparsity=0.0, times=()),))
    assert sections(plain) == ["Layers"]
    top = Ceilings(1, 100.0, 60.0, 20.0)
    full = ModelReport(
        "t", "m", (fact(),), top, (("a", 0.5, 0.9),), {"loss": {"loss": [(0, 1.0), (1, 0.5)]}}, ({"layer": "fc"},)
    )
    assert sections(full, Section("Mine", "", Html(""))) == [
        "Mine", "Layers", "Sparsity by layer", "Roofline", "Training", "Accuracy against sparsity"
    ]  # fmt: skip
    assert "Roofline" not in sections(ModelReport("t", "m", (fact(times=()),), top))


def test_the_page_holds_the_figures():
    page = ModelReport("a < b", "on two cores", (fact(times=((100.0, 50.0), (30.0, 60.0))),)).page().html()
    for text in ("a &lt; b", "on two cores", "2.00x", "0.50x", "1.5 kB", "dense: 3.0 kB", "50.0%", "4 x 8", ">CSR<"):
        assert text in page, text
    assert 'class="n good"' in page and 'class="n bad"' in page
    body = page[page.index("<main>") : page.index("</main>") + 7]
    ElementTree.fromstring(body)  # every tag is closed


def test_what_was_not_measured_is_a_dash():
    made = ModelReport("t", "m", (fact(), fact(name="out", times=())))
    assert str(made).count("–") >= 3 and "2.00x" in str(made)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (5e12, "5000.0 GB")],
)
def test_bytes(count, text):
    assert _bytes(count) == text


def test_to_dict_is_plain():
    found = gs.report(gs.sparsify_(network(), "90%"), None, tokens=[1])
    again = json.loads(json.dumps(found.to_dict()))
    assert [x["name"] for x in again["layers"]] == ["0.weight", "2.weight"]
    assert again["layers"][0]["times"][0]["gain"] > 0
    assert (again["ceilings"] is None) == (native.ceilings(torch.get_num_threads()) is None)
