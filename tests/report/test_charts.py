"""The pictures of a report."""

import re
from xml.etree import ElementTree

import pytest
import torch

from gossamer.native import Ceilings
from gossamer.report import charts
from gossamer.report.layers import LayerFacts, Timed
from gossamer.report.masks import picture

TOP = Ceilings(1, gflops=100.0, cache_gbytes=50.0, memory_gbytes=10.0)


def fact(name="fc", model="", sparsity=0.5, shape=(8, 8), format="CSR()", times=(), mask=None):
    return LayerFacts(model, name, shape, "2:4", format, sparsity, 32, 140, 256, "linear", "native", times, mask)


def titles(html):
    return re.findall(r"<title>([^<]*)</title>", html)


def test_bars_of_each_model_and_how_many_are_left():
    layers = [fact(f"l{n}", "a") for n in range(62)] + [fact("only", "b")]
    out = charts.sparsity(layers, ["a", "b"])
    assert out.count("<figure>") == 2 and "2 more are in the table" in out
    assert "l59" in out and "l60" not in out and "only" in out
    assert "more are in the table" not in charts.sparsity(layers[:60], ["a"])


def test_masks_are_the_largest_first():
    drawn = picture(torch.eye(4).bool())
    layers = [fact(f"l{n}", shape=(4, 4 + n), mask=drawn) for n in range(17)] + [fact("none", shape=(99, 99))]
    out = charts.masks(layers)
    first, more = out.split('<details class="more">')
    assert first.count("<figure>") == 16 and "<h3>l0</h3>" not in first and "none" not in out
    assert more.count("<figure>") == 1 and "<h3>l0</h3>" in more and "1 more mask of" in more and "<svg" not in more
    assert (
        out.index("<h3>l16</h3>") < out.index("<h3>l1</h3>")
        and "2:4, 50.0% sparse" in out
        and "density of all 4 x 4" in out
    )


def test_a_roofline_has_a_point_for_each_case_and_a_hollow_one_for_dense():
    times = (Timed("10 tokens", 10, dense_us=4.0, us=2.0),)
    sparse, dense = fact(times=times), fact("out", format="Dense()", times=times)
    out = charts.roofline([sparse, dense], [""], TOP)
    said = titles(out)
    assert len(said) == 3 and out.count('class="hollow') == 1
    assert said[0].startswith("fc, 10 tokens: 0.3 GFLOP/s at 0.82 operations per byte")  # 640 / 2 us
    assert said[1].startswith("fc, 10 tokens, dense: 0.3 GFLOP/s at 1.43")  # 1280 / 4 us
    assert "100 GFLOP/s, 50 GB/s from an 8 MB cache, and (dashed) 10 GB/s from memory" in out
    ElementTree.fromstring(re.search(r"<svg.*</svg>", out, re.S).group())


def test_points_of_models_have_their_colours_and_names():
    times = (Timed("1 token", 1, 4.0, 2.0),)
    out = charts.roofline([fact(model="a", times=times), fact(model="b", times=times)], ["a", "b"], TOP)
    assert titles(out)[0].startswith("a fc") and titles(out)[2].startswith("b fc")
    assert out.count("<li>") == 2 and 'class="f k0"' in out and 'class="f k1"' in out


def test_a_plot_for_each_quantity_and_a_line_for_each_series():
    made = charts.curves(
        {"loss": {"a": [(0, 3.0), (1, 2.0)], "b": [(0, 1.0), (1, 1.0)]}, "churn": {"x": [(0, 0.3), (2, 0.1)]}}
    )
    assert len(made) == 2 and made[0].count('class="series') == 2 and made[0].count("<li>") == 2
    assert "<li>" not in made[1] and " %" in made[1] and " %" not in made[0]
    assert len(charts.curves({"nothing": {}})) == 1


@pytest.mark.parametrize(
    ("points", "title", "axis"),
    [
        ([("dense", 0.0, 0.95), ("half", 0.5, 0.9)], "half: 90.00% at 50.0% sparsity", "accuracy"),
        ([("a", 0.9, 12.5), ("b", 0.95, 14.25)], "b: 14.25 at 95.0% sparsity", "metric"),
    ],
)
def test_accuracy_against_sparsity(points, title, axis):
    out = charts.accuracy(points)
    assert titles(out)[1] == title and f">{axis}<" in out and out.count("<li>") == 2


def test_a_name_has_one_colour():
    out = charts.accuracy([("a", 0.1, 0.9), ("b", 0.5, 0.8), ("a", 0.9, 0.7)])
    assert re.findall(r'class="f (k\d)"', out) == ["k0", "k1", "k0"] and out.count("<li>") == 2
