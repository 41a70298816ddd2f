import re

import pytest
import torch

import gossamer as gs
from gossamer.report.kinds import block_of, groups, kind_of, overview


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


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.10.mlp.up_proj.weight", "model.layers.10"),
        ("layers.1.experts.3.w1", "layers.1"),
        ("lm_head.weight", "lm_head"),
        ("weight", "weight"),
    ],
)
def test_a_block_is_the_name_up_to_its_first_number(name, block):
    assert block_of(name) == block


def test_several_models_are_rows_that_open_to_their_groups():
    def model(how):
        layers = (torch.nn.Linear(8, 8, bias=False) for _ in range(8))
        return gs.sparsify_(torch.nn.Sequential(*layers), how, format=gs.CSR())

    found = gs.report({"half": model("50%"), "quarter": model("75%")}, None, measure=False)
    html = found.page().html()
    assert html.count("<details>") == (2 + 2 * 1) + (2 + 2 * 8)  # by kind, by block: models, and groups in each
    assert html.index("<span>half</span>") < html.index("<span>quarter</span>")


def test_items_of_a_kind_share_the_rest_of_the_key():
    found = groups([("0.w", "CSR"), ("1.w", "Dense"), ("2.w", "CSR")], lambda item: item)
    assert {key: len(same) for key, same in found.items()} == {("*.w", "CSR"): 2, ("*.w", "Dense"): 1}


def page_of(layers):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(layers)))
    return gs.report(gs.sparsify_(model, "75%", format=gs.CSR()), None, measure=False).page().html()


def test_a_report_of_many_layers_has_their_kinds_first_and_a_filter():
    html = page_of(20)
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles.index("Groups of layers") < titles.index("Layers")
    assert html.count("<details>") == 1 + 20 and "*.weight <small>CSR</small>" in html  # one kind, 20 blocks
    assert html.count("<li><span>") == 2 * 20 and '<span class="n" data-t="sparsity">75.0%</span>' in html
    assert 'class="filter"' in html


def test_a_report_of_few_layers_has_neither():
    html = page_of(3)
    assert "Groups of layers" not in html and 'type="search"' not in html


@pytest.mark.parametrize(("count", "long"), [(30, False), (31, True)])
def test_a_table_of_many_groups_scrolls_by_itself(count, long):
    tensors = {f"part_{i}.weight": torch.ones(2, 2) for i in range(count)}
    layers = gs.report(tensors, None, measure=False).layers
    assert ('class="scroll long"' in overview(layers, ())) == long
