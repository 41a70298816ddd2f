import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.prune.decay import SharedNM, on_the_way
from gossamer.prune.schedules import SCHEDULES, as_schedule
from gossamer.prune.staged import _shares
from tests.support import is_sparse


def setup(how="2:8", **options):
    dense = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model, x = copy.deepcopy(dense), torch.randn(256, 16)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def train_step(model, distill):
        loss = distill(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    metric = lambda m: -gs.prune.distill_logits(m(x), dense(x)).item()
    report = gs.prune.gradual(model, how, train_step, teacher=dense, calibration=[x], metric=metric, **options)
    return model, report


@pytest.mark.parametrize("method", ["magnitude", "sparsegpt", "obs"])
@pytest.mark.parametrize("how", ["2:8", "4:2:8", "80%", "block 2x2 75%"])
def test_training_recovers(how, method):
    model, report = setup(how, steps=60, stages=3, method=method)
    want = gs.patterns.as_pattern(how)
    for layer in (model[0], model[2]):
        mask = layer.weight.mask()
        assert is_sparse(layer.weight) and torch.equal(want.select(mask.float()), mask)
    assert len(report.history) == 3 and sum(h["steps"] for h in report.history) == 60
    assert report.after > report.history[-1]["pruned"] and report.before == 0.0
    sparsities = [h["sparsity"] for h in report.history]
    assert sparsities == sorted(sparsities)


def test_structure_decay():
    _, report = setup("2:8", steps=8)
    assert [h["patterns"] for h in report.history] == [["5:8"], ["4:8"], ["3:8"], ["2:8"]]
    _, report = setup("4:2:8", steps=8)
    assert [h["patterns"][0] for h in report.history] == ["4:5:8 of 6", "4:4:8 of 5", "4:3:8 of 5", "4:2:8"]
    _, report = setup("80%", steps=4, schedule="linear")
    assert [h["patterns"][0] for h in report.history] == ["20%", "40%", "60%", "80%"]


def test_masks_hold_while_training_and_the_hook_is_told():
    told = []
    setup(
        "75%",
        steps=4,
        stages=2,
        on_prune=lambda stage, patterns: told.append((stage, sorted(map(str, patterns.values())))),
    )
    assert [stage for stage, _ in told] == [0, 1] and told[1][1] == ["75%", "75%"]


def test_weights_that_are_zero_may_still_be_kept():
    model = nn.Linear(8, 8)
    nn.init.zeros_(model.weight)
    gs.prune.gradual(model, "2:4", lambda m, d: None, steps=1, stages=1)
    assert model.weight.sparsity == 0.5


def test_shares_add_up():
    for steps in (0, 1, 7, 100):
        for stages in (1, 2, 5):
            assert sum(_shares(steps, stages, 0.5)) == steps and min(_shares(steps, stages, 0.5)) >= 0


def test_schedules():
    for schedule in SCHEDULES.values():
        values = [schedule(t / 10) for t in range(11)]
        assert values == sorted(values) and values[-1] == pytest.approx(1)
    assert as_schedule(lambda t: t * t)(0.5) == 0.25
    with pytest.raises(ValueError, match="unknown schedule 'wild'"):
        as_schedule("wild")
    with pytest.raises(ValueError, match="stages"):
        gs.prune.gradual(nn.Linear(4, 4), "2:4", lambda m, d: None, steps=1, stages=0)


def test_a_loss_of_nan_stops_it():
    with pytest.raises(FloatingPointError, match="NaN"):
        gs.prune.gradual(nn.Linear(4, 4), "2:4", lambda m, d: float("nan"), steps=1)


def test_shared_columns_narrow_down():
    scores = torch.rand(8, 32)
    mask = SharedNM(8, 6, 4, 8).select(scores)
    assert (mask.view(8, 4, 8).sum(2) == 4).all() and (mask.view(8, 4, 8).any(0).sum(1) <= 6).all()
    same = SharedNM(8, 4, 2, 8).select(scores)
    assert torch.equal(same, gs.VNM(8, 2, 8).select(scores))
    assert on_the_way(gs.KeepAll(), 0.5) == gs.KeepAll()


def test_distillation():
    pytest.importorskip("transformers")
    from transformers.modeling_outputs import BaseModelOutput

    a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    want = torch.nn.functional.kl_div(
        torch.log_softmax(a / 2, -1).flatten(0, 1), torch.softmax(b / 2, -1).flatten(0, 1), reduction="batchmean"
    )
    torch.testing.assert_close(gs.prune.distill_logits(a, b), 4 * want)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    want = (a - b)[mask.bool()].square().sum() / b[mask.bool()].square().sum()
    torch.testing.assert_close(gs.prune.distill_hidden([a], [b], mask), want)
    teacher = lambda *args, **kwargs: BaseModelOutput(last_hidden_state=b)
    holder = gs.prune.Distill(None)
    holder.teacher = teacher
    torch.testing.assert_close(holder(BaseModelOutput(last_hidden_state=a), attention_mask=mask), want)
    assert float(gs.prune.Distill(None)(a)) == 0.0
    with pytest.raises(ValueError, match="hidden states"):
        gs.prune.distill_hidden([a], [b, b])
    with pytest.raises(TypeError, match="logits"):
        gs.prune.Distill(None)(3)
