import re

import pytest
import torch

import gossamer as gs
from gossamer.report.kinds import groups, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layers.0.mlp.up_proj.weight", "layers.*.mlp.up_proj.weight"),
        ("layers.10.experts.3.w1", "layers.*.experts.*.w1"),
        ("conv2d.weight", "conv2d.weight"),
        ("0.weight", "*.weight"),
        ("7", "*"),
    ],
)
def test_numbers_become_stars(name, kind):
    assert kind_of(name) == kind


def test_items_of_a_kind_share_the_rest_of_the_key():
    found = groups([("0.w", "CSR"), ("1.w", "Dense"), ("2.w", "CSR")], lambda item: item)
    assert {key: len(same) for key, same in found.items()} == {("*.w", "CSR"): 2, ("*.w", "Dense"): 1}


def page_of(layers):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(layers)))
    return gs.report(gs.sparsify_(model, "75%", format=gs.CSR()), None, measure=False).page().html()


def test_a_report_of_many_layers_has_their_kinds_first_and_a_filter():
    html = page_of(20)
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles.index("Kinds of layers") < titles.index("Layers")
    assert html.count("<details>") == 1 and "*.weight <small>CSR</small>" in html
    assert html.count("<li><span>") == 20 and '<span class="n">75.0%</span>' in html
    assert 'class="filter"' in html


def test_a_report_of_few_layers_has_neither():
    html = page_of(3)
    assert "Kinds of layers" not in html and 'type="search"' not in html
