import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from gossamer.methods import Left, survey, taken_and_left


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv1d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.BatchNorm1d(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)
        self.b.weight = self.a.weight  # tied layers
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.decoder = nn.Linear(16, 12, bias=False)
        self.decoder.weight = self.embed.weight  # tied to an embedding
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.masked = prune.identity(nn.Linear(16, 16), "weight")
        self.head = nn.Linear(16, 5)


def names(**options):
    return [layer.name for layer in survey(Zoo(), **options).layers]


def test_what_is_taken_and_what_is_left():
    found = survey(Zoo())
    assert [layer.name for layer in found.layers] == [
        "conv.weight", "attention.in_proj_weight[q]", "attention.in_proj_weight[k]", "attention.in_proj_weight[v]",
        "attention.out_proj.weight", "a.weight", "frozen.weight", "head.weight",
    ]  # fmt: skip
    reasons = {one.name: one.reason for one in found.left}
    assert reasons["embed.weight"] == "output layers tied to an embedding"
    assert reasons["depthwise.weight"] == "depthwise convolutions" and reasons["conv.bias"] == "vectors"
    assert reasons["gru.weight_ih_l0"] == "parameters of GRU, which is not supported"
    assert "parametrization" in reasons["normed.parametrizations.weight.original1"]
    assert "masked by torch.nn.utils" in reasons["masked.weight_orig"]
    every = {n: p.numel() for n, p in Zoo().named_parameters()}
    taken = {layer.parameter_name: layer.parameter.numel() for layer in found.layers}
    assert {**taken, **{one.name: one.size for one in found.left}} == every


def test_where():
    assert names(where="head") == ["head.weight"]
    assert names(where=lambda name: name.startswith("a.")) == ["a.weight"]
    assert names(where=["head", "attention.out_proj"]) == ["attention.out_proj.weight", "head.weight"]
    assert "depthwise.weight" not in names(where="*")
    assert names(where="depthwise") == ["depthwise.weight"] and names(where="embed") == ["embed.weight"]
    with pytest.raises(ValueError, match="no weight that can be sparse is called 'heat'"):
        names(where="heat")
    assert {one.reason for one in survey(Zoo(), "head").left if one.name == "a.weight"} == {"not asked for"}


def test_frozen_weights_are_left_when_it_is_about_training():
    assert "frozen.weight" not in names(trained=True)


def test_a_linear_layer_by_itself_and_nothing():
    assert [layer.name for layer in survey(nn.Linear(3, 3)).layers] == ["weight"]
    assert survey(nn.ReLU()).layers == () and str(survey(nn.ReLU())) == "0 sparse weights, 0.0 % of all parameters"


def test_one_line():
    left = [Left("a", 30, "vectors"), Left("b", 60, "embeddings"), Left("c", 10, "vectors")]
    assert taken_and_left(3, 100, left) == (
        "3 sparse weights, 50.0 % of all parameters; dense: 30.0 % embeddings, 20.0 % vectors"
    )


def test_a_tied_weight_is_read_as_the_layer_that_multiplies_with_it():
    model = nn.ModuleDict({"embed": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    (layer,) = survey(model, "embed").layers
    assert torch.equal(layer.matrix(layer.dense()), model["head"].weight.detach())
