"""Names and globs of weights, and help for misspelt ones."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.names import by_layer, chosen, inputs_first, layer_weights, matching

NAMES = ["a.weight", "a.bias", "b.0.weight", "b.1.weight"]


def test_globs_by_hand():
    assert matching("*.weight", NAMES, "x") == ["a.weight", "b.0.weight", "b.1.weight"]
    assert matching("a.bias", NAMES, "x") == ["a.bias"]
    assert matching("b.[1-9].*", NAMES, "x") == ["b.1.weight"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.wieght", "no thing is called 'a.wieght'; did you mean 'a.weight'"),
        ("A.WEIGHT", "no thing is called 'A.WEIGHT'"),
        ("*.bias.", "did you mean 'a.bias'"),
        ("zzz", "there are 4: 'a.weight', 'a.bias', 'b.0.weight', 'b.1.weight'$"),
    ],
)
def test_what_is_not_there_is_helped(name, message):
    with pytest.raises(ValueError, match=message):
        matching(name, NAMES, "thing")


def test_five_names_are_shown_of_many():
    with pytest.raises(ValueError, match=r"there are 6: '0', '1', '2', '3', '4', \.\.\.$"):
        matching("zzz", map(str, range(6)), "x")


def test_where():
    assert chosen(NAMES, None) == NAMES
    assert chosen(NAMES, lambda name: "bias" in name) == ["a.bias"]
    assert chosen(NAMES, "b.*") == ["b.0.weight", "b.1.weight"]
    assert chosen(NAMES, ["b.1", "a.weight", "*.weight"]) == ["a.weight", "b.0.weight", "b.1.weight"]  # in their order
    with pytest.raises(ValueError, match="no weight that can be sparse is called 'c'"):
        chosen(NAMES, ["a.weight", "c"])


def test_where_that_chooses_nothing_is_refused():
    for where in ([], lambda name: False):
        with pytest.raises(ValueError, match="chooses no weight; there are 2: 'a', 'b'"):
            chosen(["a", "b"], where)
    with pytest.raises(TypeError, match="where=3 must be a glob of names, several of them, or a function of a name"):
        chosen(["a"], 3)
    with pytest.raises(TypeError, match="a glob of names, not by 3 of type int"):
        chosen(["a"], ["a", 3])


def test_a_module_stands_for_its_parameters():
    assert by_layer("a", NAMES) == ["a.weight", "a.bias"] and by_layer("b.?", NAMES) == ["b.0.weight", "b.1.weight"]
    assert by_layer("", ["weight", "x.weight"]) == ["weight"]


def test_which_weights_are_those_of_layers():
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(8, 4), "norm": nn.LayerNorm(4), "fc": nn.Linear(4, 4), "conv": nn.Conv2d(1, 2, 3),
            "attention": nn.MultiheadAttention(4, 2), "up": nn.ConvTranspose1d(2, 2, 3),
        }
    )  # fmt: skip
    assert list(layer_weights(model)) == [
        "fc.weight", "conv.weight", "attention.in_proj_weight", "attention.out_proj.weight", "up.weight"
    ]  # fmt: skip


def test_a_tied_weight_has_the_name_it_has_as_a_layer():
    model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embed"].weight
    weights = layer_weights(model)
    assert list(weights) == ["head.weight"] and weights["head.weight"].name == "head.weight"
    assert weights["head.weight"].names == ("embed.weight", "head.weight")


def test_inputs_first_is_conv1d_of_transformers_only():
    class Conv1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8))

    layer = Conv1D()
    assert inputs_first(layer) and list(layer_weights(layer)) == ["weight"]
    gs.sparsify_(layer, "50%")
    assert inputs_first(layer)
    assert not inputs_first(nn.Conv1d(1, 1, 1)) and not inputs_first(nn.Linear(1, 1))
