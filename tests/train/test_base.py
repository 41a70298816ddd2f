"""The life cycle: bookkeeping, gradients, loops of every kind."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats.values import scatter
from gossamer.train.state import usual_squares
from tests.ops.test_training import OPTIMIZERS


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def steps(model, optimizer, method, n, start=0, micro=1):
    for step in range(start, start + n):
        for part in range(micro):
            torch.manual_seed(1000 + step * micro + part)
            F.cross_entropy(model(torch.randn(6, 12)), torch.randint(4, (6,))).backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()


def weights(model):
    return list(gs.nn.sparse_parameters(model).values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_dropped_weights_are_gone_and_grown_ones_start_at_zero(optimizer):
    model = network()
    opt = OPTIMIZERS[optimizer](model.parameters())
    method = gs.train.RigL(model, opt, 0.7, every=3, until=100, fraction=0.5, moments="zero")
    steps(model, opt, method, 2)
    before = [w.mask() for w in weights(model)]
    steps(model, opt, method, 1, start=2)
    changed = 0
    for w, old in zip(weights(model), before, strict=True):
        new = w.mask()
        changed += int((new & ~old).sum())
        assert int(new.sum()) == int(old.sum())
        assert not w.detach().to_dense()[~new].any()
        assert not w.detach().to_dense()[new & ~old].any()
        for name, value in opt.state[w].items():
            if isinstance(value, torch.Tensor) and value.shape == w.shape and name != "exp_inf":  # of Adamax: eps
                assert type(value) is torch.Tensor and not value[~new].any()
                assert not value[new & ~old].any()
    assert changed
    steps(model, opt, method, 2, start=3)  # momentum and decay never revive a dropped weight
    for w in weights(model):
        assert torch.count_nonzero(w.detach().to_dense()) <= w.nnz


@pytest.mark.parametrize("format", [gs.Masked(), gs.formats.PackedCSR()], ids=str)
def test_squared_gradients_of_grown_weights_start_as_their_neighbours(format):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    method = gs.train.RigL(model, optimizer, 0.7, every=3, until=100, fraction=0.5, format=format)
    steps(model, optimizer, method, 2)
    before = [w.mask() for w in weights(model)]
    steps(model, optimizer, method, 1, start=2)
    for weight, old in zip(gs.nn.sparse_weights(model).values(), before, strict=True):
        new, state, structure = weight.mask(), optimizer.state[weight.parameter], weight.structure
        grown = new & ~old
        assert grown.any() and (new & old).any()
        for name in ("exp_avg_sq", "max_exp_avg_sq"):
            squares = scatter(state[name], structure)
            assert not squares[~new].any()
            kept = squares[new & old]
            assert float(kept.min()) < float(kept.mean()) < float(kept.max())  # so that no other number would do
            expected = usual_squares(squares, new & old)[grown]
            torch.testing.assert_close(squares[grown], expected)
            assert len(expected.unique()) > 1
        assert not scatter(state["exp_avg"], structure)[grown].any()


def test_static_is_masked_dense_training():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    method = gs.train.Static(model, optimizer, 0.7)
    dense, masks = gs.densify_(copy.deepcopy(model)), [w.mask() for w in weights(model)]
    other = torch.optim.AdamW(dense.parameters(), lr=0.01)
    matrices = [dense[i].weight for i in (0, 2, 4)]
    steps(model, optimizer, method, 5)
    for step in range(5):
        torch.manual_seed(1000 + step)
        F.cross_entropy(dense(torch.randn(6, 12)), torch.randint(4, (6,))).backward()
        for w, mask in zip(matrices, masks, strict=True):
            w.grad.mul_(mask)
        other.step()
        other.zero_grad()
        with torch.no_grad():
            for w, mask in zip(matrices, masks, strict=True):
                w.mul_(mask)
    for w, d in zip(weights(model), matrices, strict=True):
        torch.testing.assert_close(w.detach().to_dense(), d.detach())


def test_a_dense_gradient_is_asked_for_only_before_an_update():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, 0.7, every=3, until=6)
    asked = []
    for step in range(8):
        asked.append(gs.nn.all_weights(model)["0.weight"].held.collects)
        steps(model, optimizer, method, 1, start=step)
    assert asked == [False, False, True, False, False, True, False, False]


def test_micro_batches_add_up(monkeypatch):
    model, seen = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, 0.7, every=1, until=6)
    monkeypatch.setattr(method, "update", lambda layer: seen.append(layer.grad.clone()))
    dense = gs.densify_(copy.deepcopy(model))
    steps(model, optimizer, method, 1, micro=3)
    for part in range(3):
        torch.manual_seed(1000 + part)
        F.cross_entropy(dense(torch.randn(6, 12)), torch.randint(4, (6,))).backward()
    for have, i in zip(seen, (0, 2, 4), strict=True):
        torch.testing.assert_close(have, dense[i].weight.grad)


def test_the_update_sees_the_gradient_before_zero_grad_or_after():
    found = []
    for zero_first in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = gs.train.RigL(model, optimizer, 0.7, every=1, until=6)
        torch.manual_seed(1)
        model(torch.randn(6, 12)).square().sum().backward()
        optimizer.step()
        if zero_first:
            optimizer.zero_grad()
        method.step()
        found.append(model[0].weight.mask())
    assert torch.equal(*found)


def test_a_closure_and_a_late_scheduler():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = gs.train.SRigL(model, optimizer, 0.5, every=1, until=10)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(6, 12)).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
        method.step()
        scheduler.step()
    assert method.log()["updates"] == 4
    for w in weights(model):
        assert not optimizer.state[w]["momentum_buffer"][~w.mask()].any()


def test_a_step_that_the_scaler_skips_doesnt_count():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, 0.7, every=2, until=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(6, 12)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        method.step()
    assert method.steps == 2 and method.log()["updates"] == 1


def test_autocast_clipping_and_groups():
    model = network()
    groups = [{"params": [model[0].weight], "lr": 0.01}, {"params": list(model.parameters())[1:]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    method = gs.train.SRigL(model, optimizer, 0.5, every=2, until=10)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(torch.randn(6, 12))
        out.float().square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        method.step()
    assert method.log()["updates"] == 2


def test_log_and_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.SET(model, optimizer, 0.7, every=1, until=10)
    steps(model, optimizer, method, 3)
    log = method.log()
    assert log["step"] == 3 and log["updates"] == 3 and log["kept"] == round(0.3 * (192 + 128 + 32))
    row = log["layers"]["0.weight"]
    assert 0 < row["churn"] < 1 and row["density"] < row["explored"] <= 1 and row["neurons"] == 16

    with SummaryWriter(tmp_path) as writer:
        method.log(writer)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert f"sparsity/explored/{method.layers[-1].name}" in events.Tags()["scalars"]
    (churn,) = events.Scalars("sparsity/churn/0.weight")
    assert churn.step == 3 and churn.value == pytest.approx(row["churn"])


def test_closed_methods_let_go():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, 0.7, every=1, until=10)
    method.close()
    mask = model[0].weight.mask()
    steps(model, optimizer, method, 2)
    assert method.steps == 0 and torch.equal(mask, model[0].weight.mask())


@pytest.mark.slow
def test_compiled_models_need_two_graphs_and_give_the_same_masks():
    masks = []
    for wrap in (lambda m: m, torch.compile):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        method = gs.train.RigL(model, optimizer, 0.7, every=3, until=100)
        steps(wrap(model), optimizer, method, 7)
        masks.append(model[0].weight.mask())
    assert torch.equal(*masks)


def test_weights_that_two_modules_share_have_one_mask():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    method = gs.train.SRigL(model, optimizer, 0.7, every=2, until=10, min_salient=1)
    steps(model, optimizer, method, 4)
    assert [layer.name for layer in method.layers] == ["0.weight", "4.weight"]
    assert model[2].weight is model[0].weight and method.log()["updates"] == 2


def test_curves_are_plain_lists():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.SRigL(model, optimizer, 0.7, every=2, until=10, gamma=1.0, min_salient=1)
    steps(model, optimizer, method, 6)
    curves = method.curves()
    assert set(curves) == {"density", "churn", "ablated", "explored"}
    assert all(set(lines) == {"0.weight", "2.weight", "4.weight"} for lines in curves.values())
    line, log = curves["ablated"]["0.weight"], method.log()["layers"]["0.weight"]
    assert line["step"] == [2, 4, 6] and line["value"][-1] == log["ablated"] / log["neurons"]
    assert curves["explored"]["0.weight"]["value"][-1] == log["explored"]
    assert json.loads(json.dumps(curves)) == curves


@pytest.mark.parametrize("cls", [gs.train.Static, gs.train.SRigL])
def test_first_masks_know_nothing_of_the_weights_drawn_with_the_same_seed(cls):
    torch.manual_seed(0)
    layer = nn.Linear(256, 256)
    cls(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.9, until=10, seed=0, init=None)
    kept = layer.weight.detach()[layer.weight.mask()]
    assert 0.45 < float((kept > 0).float().mean()) < 0.55
