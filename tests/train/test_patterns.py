"""Every method with every pattern: masks satisfy it after each update, budgets are kept, runs resume exactly."""

import pytest
import torch
from torch import nn

import gossamer as gs

PATTERNS = {
    "unstructured": gs.Unstructured(0.75),
    "per row": gs.Unstructured(0.75, per="row"),
    "2:4": gs.NM(2, 4),
    "grouped": gs.GroupedNM(1, 4, 2),
    "64:2:8": gs.VNM(8, 2, 8),
    "all:2:8": gs.VNM("all", 2, 8),
    "fan-in": gs.FanIn(0.75),
    "fan-in k": gs.FanIn(k=3),
    "blocks": gs.Blocks(0.75, (4, 4)),
}
OPTIONS = {
    "Static": {},
    "SET": {"every": 2, "until": 8, "fraction": 0.5},
    "RigL": {"every": 2, "until": 8, "fraction": 0.5},
    "GMP": {"every": 2, "until": 8},
    "ACDC": {"every": 2, "start": 2, "until": 7},
    "TopKAST": {"until": 8},
    "STE": {"until": 8},
    "SRSTE": {"schedule": "decay", "until": 8},
    "Movement": {"until": 8},
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8))


def made(method, *sparsity, **options):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, getattr(gs.train, method)(model, optimizer, *sparsity, **options)


def train(model, optimizer, method, steps, after=lambda step: None):
    for step in range(method.steps, steps):
        torch.manual_seed(step)
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        after(method.steps)


def has(pattern, mask):
    """A mask satisfies a pattern if the pattern, with the mask as its scores, selects the mask."""
    return torch.equal(pattern.select(mask.float()), mask)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_masks_satisfy_the_pattern_and_keep_the_budget(kind, pattern):
    model, optimizer, method = made(kind, pattern=PATTERNS[pattern], **OPTIONS[kind])
    seen = []

    def check(step):
        seen.append(torch.cat([layer.mask.reshape(-1) for layer in method.layers]))
        on_the_way = kind in ("GMP", "SRSTE", "Movement") and step < 8
        if on_the_way or (kind == "ACDC" and seen[-1].all()):
            return
        for layer in method.layers:
            by_layer = kind in ("STE", "SRSTE")  # the pattern as it is, for every layer
            wanted = PATTERNS[pattern] if by_layer else layer.pattern
            assert wanted is None or has(wanted, layer.mask), (step, layer.name)
            assert by_layer or layer.kept == layer.budget, (step, layer.name)

    check(0)
    train(model, optimizer, method, 10, check)
    if kind in ("SET", "RigL"):
        assert any(not torch.equal(seen[0], mask) for mask in seen)
    assert torch.equal(seen[-1], seen[8])  # fixed after `until`


@pytest.mark.parametrize("pattern", ["all:2:8", "64:2:8"])
def test_shared_columns_are_exchanged(pattern):
    """The sum over the rows of a block must not keep the columns of the first mask for ever."""
    model, optimizer, method = made("SET", pattern=PATTERNS[pattern], every=1, until=100, fraction=0.5)
    before = [layer.mask.any(0) for layer in method.layers]
    train(model, optimizer, method, 6)
    assert any(not torch.equal(layer.mask.any(0), old) for layer, old in zip(method.layers, before, strict=True))


@pytest.mark.parametrize("kind", ["RigL", "SET"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_more_than_the_share_is_exchanged(kind, pattern):
    model, optimizer, method = made(kind, pattern=PATTERNS[pattern], every=1, until=10, fraction=0.0)
    before = [layer.mask.clone() for layer in method.layers]
    train(model, optimizer, method, 3)
    assert all(torch.equal(layer.mask, old) for layer, old in zip(method.layers, before, strict=True))


@pytest.mark.parametrize("pattern", ["2:4", "all:2:8", "blocks", "fan-in"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_runs_resume_to_the_same_bits(kind, pattern):
    options = {"pattern": PATTERNS[pattern], **OPTIONS[kind]}
    if kind == "RigL":
        options.update(growth="mean of 3 steps", every=4)
    model, optimizer, method = made(kind, **options)
    states = {}

    def save(step):
        if step == 3:  # in the middle of an average
            parts = {"model": model, "optimizer": optimizer, "method": method}
            states.update({name: part.state_dict() for name, part in parts.items()})
            states.update(torch.load(_saved(states), weights_only=True))

    train(model, optimizer, method, 9, save)
    again, optimizer, method = made(kind, **options)
    again.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    method.load_state_dict(states["method"])
    train(again, optimizer, method, 9)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a.detach().to_dense(), b.detach().to_dense())


def _saved(states):
    import io

    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "score", [gs.Magnitude(), gs.Gradient(), gs.Movement(), gs.Random(3), gs.Fisher(), "magnitude"]
)
@pytest.mark.parametrize("kind", ["RigL", "SET", "GMP", "ACDC"])
def test_any_score(kind, score):
    model, optimizer, method = made(kind, 0.75, score=score, **OPTIONS[kind])
    train(model, optimizer, method, 10)
    assert method.log()["density"] == pytest.approx(0.25, abs=0.01)
    model, optimizer, method = made(kind, "2:4", score=score, **OPTIONS[kind])
    train(model, optimizer, method, 10)
    assert all(has(gs.NM(2, 4), layer.mask) for layer in method.layers)


def test_convolutions_and_projections_have_the_pattern_along_their_inputs():
    torch.manual_seed(0)
    model = nn.ModuleList(
        [nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 8, 3, groups=2), nn.MultiheadAttention(8, 2), nn.Linear(8, 8)]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, pattern=gs.NM(2, 4), until=10)
    names = [layer.name for layer in method.layers]
    assert names == [
        "0.weight", "1.weight", "2.in_proj_weight[q]", "2.in_proj_weight[k]", "2.in_proj_weight[v]",
        "2.out_proj.weight", "3.weight",
    ]  # fmt: skip
    assert all(has(gs.NM(2, 4), layer.mask) for layer in method.layers)
    assert {one.reason for one in method.left} == {"vectors"}


class TinyExperts(nn.Module):
    """As transformers holds them: one matrix an expert, inputs first."""

    is_transposed = True

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Parameter(torch.randn(3, 8, 12))
        self.down_proj = nn.Parameter(torch.randn(3, 12, 8))

    def forward(self, x):
        return torch.relu(x @ self.up_proj) @ self.down_proj


def test_experts_train_sparse_each_with_its_own_mask():
    torch.manual_seed(0)
    model = TinyExperts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    method = gs.train.RigL(model, optimizer, pattern="2:4", every=1, until=10)
    for _ in range(3):
        model(torch.randn(3, 5, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert [layer.name for layer in method.layers][:4] == ["up_proj[0]", "up_proj[1]", "up_proj[2]", "down_proj[0]"]
    assert [layer.shape for layer in method.layers][::3] == [(12, 8), (8, 12)]
    assert all(has(gs.NM(2, 4), layer.mask) for layer in method.layers)
    assert torch.count_nonzero(model.up_proj.detach().to_dense()) <= 144 and method.log()["density"] == 0.5


def test_a_pattern_with_a_sparsity_shares_the_weights_by_the_distribution():
    _, _, uniform = made("Static", pattern="fan-in 75%", distribution="uniform")
    assert [layer.kept // layer.outputs for layer in uniform.layers] == [4, 6, 4]
    _, _, erk = made("Static", pattern="fan-in 75%", distribution="erk")
    assert [layer.kept // layer.outputs for layer in erk.layers] == [4, 5, 6]
    assert erk.sparsity == 0.75


@pytest.mark.parametrize("pattern", ["fan-in 99%", "block 8x8 99%", "99% per row"])
def test_no_layer_is_left_without_weights(pattern):
    _, _, method = made("RigL", pattern=pattern, until=10)
    assert all(layer.kept > 0 for layer in method.layers)


def test_gradual_patterns_get_stricter_step_by_step():
    model, optimizer, method = made("GMP", pattern=gs.VNM("all", 2, 8), every=1, start=2, until=6)
    kept = []
    before = [layer.mask.clone() for layer in method.layers]

    def nested(step):
        for i, layer in enumerate(method.layers):
            assert not (layer.mask & ~before[i]).any()
            before[i] = layer.mask.clone()
        kept.append(int(model[0].weight.mask()[0, :8].sum()))

    train(model, optimizer, method, 8, nested)
    assert kept[0] == 8 and kept[1:] == sorted(kept[1:], reverse=True) and kept[-3:] == [2, 2, 2]
