"""Which weights are taken, and how they are seen."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.train.layers import find_layers
from tests.support import is_sparse


def names(model, **options):
    options = {"where": None, "skip": (), "first": False, "last": False, **options}
    return [layer.name for layer in find_layers(model, **options)[0]]


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
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        x = self.norm(self.depthwise(self.conv(x))).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.gru(self.b(self.a(x).relu()))[0]
        return self.head(self.frozen(x)), self.decoder(x)


def test_what_is_left_alone():
    assert names(Zoo()) == [
        "conv.weight", "attention.in_proj_weight[q]", "attention.in_proj_weight[k]", "attention.in_proj_weight[v]",
        "attention.out_proj.weight", "a.weight", "head.weight",
    ]  # fmt: skip


def test_options():
    assert names(Zoo(), skip=["attention.*", "conv"]) == ["a.weight", "head.weight"]
    assert names(Zoo(), first=True, last=True, where="*weight")[0].startswith("attention")
    assert names(Zoo(), last=True)[-1] == "a.weight"
    with pytest.raises(ValueError, match="no weight that can be sparse is called 'heat'"):
        names(Zoo(), skip=["heat"])


@pytest.mark.parametrize("method", ["Static", "SET", "RigL", "SRigL"])
def test_the_zoo_trains(method):
    torch.manual_seed(0)
    model = Zoo()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    method = getattr(gs.train, method)(model, optimizer, 0.7, every=2, until=20)
    for _ in range(5):
        out, scores = model(torch.randint(12, (4, 6)))
        (out.square().mean() + scores.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert method.log()["density"] == pytest.approx(0.3, abs=0.02)
    assert not is_sparse(model.embed.weight)
    assert model.a.weight is model.b.weight


def test_projections_have_their_own_neurons():
    model = nn.MultiheadAttention(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gs.train.SRigL(model, optimizer, distribution={"in_proj_weight[[]q]": 0.5, "*": 0.75}, until=10)
    fan_in = model.in_proj_weight.mask().sum(1)
    assert fan_in.tolist() == [8] * 16 + [4] * 32


def test_transposed_weights_are_seen_by_neuron():
    conv = nn.ConvTranspose1d(6, 4, 3)
    (layer,), _ = find_layers(conv)
    assert (layer.outputs, layer.inputs) == (4, 18)
    matrix = layer.matrix(conv.weight.detach())
    assert torch.equal(matrix[1], conv.weight[:, 1].reshape(-1))
    back = torch.zeros_like(conv.weight)
    layer.put(back, matrix)
    assert torch.equal(back, conv.weight)
    gs.train.SRigL(conv, torch.optim.SGD(conv.parameters(), lr=0.1), 0.5, until=10)
    assert conv.weight.mask().sum((0, 2)).tolist() == [9] * 4


def test_conv1d_of_transformers():
    conv = pytest.importorskip("transformers.pytorch_utils").Conv1D(6, 8)
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    method = gs.train.SRigL(conv, optimizer, 0.5, every=1, until=10)
    for _ in range(3):
        conv(torch.randn(2, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert conv.weight.mask().sum(0).tolist() == [4] * 6
    assert method.log()["updates"] == 3
