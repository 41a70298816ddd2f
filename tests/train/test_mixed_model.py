"""Every method on one model of many kinds of layers: attention, a convolution, tied embeddings, bfloat16."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs

STEPS = 12
TOKENS = torch.randint(32, (4, 8), generator=torch.Generator().manual_seed(0))
METHODS = {
    "GMP all:2:8": lambda m, o: gs.train.GMP(m, o, pattern=gs.VNM("all", 2, 8), until=0.75 * STEPS, every=3),
    "RigL": lambda m, o: gs.train.RigL(m, o, sparsity=0.9, start=2, every=5, growth="mean of 8 steps"),
    "SRSTE, sparse": lambda m, o: gs.train.SRSTE(m, o, "2:4", transposable=True, compute="sparse"),
    "SRSTE, gradual": lambda m, o: gs.train.SRSTE(m, o, "all:2:8", schedule="decay", until=9),
    "SRigL": lambda m, o: gs.train.SRigL(m, o, sparsity=0.8, every=3, until=9),
    "ACDC": lambda m, o: gs.train.ACDC(m, o, 0.8, every=3, until=9),
    "TopKAST": lambda m, o: gs.train.TopKAST(m, o, 0.8, refresh=2),
    "Movement": lambda m, o: gs.train.Movement(m, o, 0.8, until=9),
}


class Net(nn.Module):
    """One layer of each kind."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.convolution = nn.Conv1d(32, 32, 3, padding=1)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 32, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.down(F.gelu(self.up(x))))


def steps(model, optimizer, method=None, count=STEPS):
    for _ in range(count):
        loss = F.cross_entropy(model(TOKENS).float().flatten(0, 1), TOKENS.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if method is not None:
            method.step()
    return float(loss.detach())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_trains_and_becomes_dense(name, dtype, tied):
    torch.manual_seed(0)
    model = Net(tied).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    before = steps(model, optimizer, count=1)
    method = METHODS[name](model, optimizer)
    assert steps(model, optimizer, method) < before
    for layer in method.layers:
        assert not layer.weight[~layer.mask].any()
    method.close()
    steps(model, optimizer, count=2)
    for layer in method.layers:
        assert not layer.weight[~layer.mask].any()  # it trains further as any sparse model
    gs.densify_(model)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    kept = (model.up.weight != 0).sum()
    assert steps(model, optimizer, count=6) < before
    assert (model.up.weight != 0).sum() > kept and all(p.isfinite().all() for p in model.parameters())
