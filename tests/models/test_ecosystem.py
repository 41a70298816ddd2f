"""What torch's world does with a module: each on a masked, a packed and a built model."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gossamer as gs
from tests.support import assert_same_weights, masks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return self.head(y + self.conv(y.view(-1, 4, 4)).view_as(y))


def masked() -> nn.Module:
    return gs.sparsify_(Net(), "75%")


def packed() -> nn.Module:
    model = gs.sparsify_(Net(), {"body.0": "75%", "body.2": "75%", "head": "75%", "*": None})
    for weight, format in zip(
        gs.nn.sparse_weights(model).values(),
        (gs.formats.PackedCSR(), gs.CSR(), gs.formats.PackedCSR()),
        strict=True,
    ):
        weight.become(weight.dense(), weight.mask(), format)
    return model


def built() -> nn.Module:
    sb = gs.SparsityBuilder(Net())
    sb.set_weight("body.0.weight", initial_sparsifier="75%", out_format=gs.CSR())
    sb.set_weight("body.2.weight", initial_sparsifier="50%", external_sparsifier="75%", every=2)
    sb.set_weight_grad("head.weight", external_sparsifier="50%", out_format=gs.COO())
    sb.set_interm("body.1", external_sparsifier=gs.sparsifiers.ScalarThreshold(0.1))
    sb.set_interm("body.2:linear", external_sparsifier=gs.sparsifiers.ScalarThreshold(0.01))
    return sb.get_sparse_model()


MODELS = {"masked": masked, "packed": packed, "built": built}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(6, 16)


def train(model: nn.Module, steps: int = 3, **options: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(step)
        model(torch.randn(6, 16)).square().sum().backward()
        optimizer.step()


def assert_alike(one: nn.Module, other: nn.Module, x: torch.Tensor) -> None:
    """Same outputs now, and after training both in the same way: nothing of what a model is was lost."""
    assert_same_weights(one, other)
    assert torch.equal(one(x), other(x))
    train(one)
    train(other)
    assert_same_weights(one, other)
    assert torch.equal(one(x), other(x))


@every_model
def test_what_it_holds_is_plain(make: Any) -> None:
    model = make()
    for tensor in (*model.parameters(), *model.buffers(), *model.state_dict().values()):
        assert type(tensor) in (torch.Tensor, nn.Parameter, gs.nn.MaskedParameter)
        assert type(tensor.detach()) is torch.Tensor


@every_model
def test_deepcopy(make: Any, x: torch.Tensor) -> None:
    model = make()
    other = copy.deepcopy(model)
    ours = {p.data_ptr() for p in model.parameters()}
    assert not ours & {p.data_ptr() for p in other.parameters()}
    assert_alike(model, other, x)


@every_model
def test_pickle(make: Any, x: torch.Tensor) -> None:
    model = make()
    assert_alike(model, pickle.loads(pickle.dumps(model)), x)


@every_model
def test_torch_save_of_the_module(make: Any, x: torch.Tensor) -> None:
    model, file = make(), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert_alike(model, torch.load(file, weights_only=False), x)


@every_model
def test_torch_save_of_the_state(make: Any, x: torch.Tensor) -> None:
    model, other, file = make(), make(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same_weights(model, other)
    assert torch.equal(model(x), other(x))


@every_model
def test_load_state_dict_that_assigns(make: Any, x: torch.Tensor) -> None:
    model, other = make(), make()
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert_alike(model, other, x)


@every_model
def test_safetensors(make: Any, x: torch.Tensor, tmp_path: Path) -> None:
    model, other = make(), make()
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    assert_same_weights(model, other)
    state = model.state_dict()
    safetensors.torch.save_file(state, tmp_path / "state.safetensors")
    assert set(safetensors.torch.load_file(tmp_path / "state.safetensors")) == set(state)


@every_model
def test_accelerate(make: Any, x: torch.Tensor, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, other = make(), make()
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.save_model(model, str(tmp_path))
    accelerate.load_checkpoint_in_model(other, str(tmp_path))
    assert_same_weights(model, other)
    prepared, _ = accelerator.prepare(make(), torch.optim.AdamW(model.parameters()))
    accelerator.backward(prepared(x).sum())
    accelerate.state.AcceleratorState._reset_state(True)


@every_model
def test_hub_mixin(make: Any, x: torch.Tensor, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")

    class Shared(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.net = make()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    model = Shared()
    train(model)
    model.save_pretrained(tmp_path)
    loaded = Shared.from_pretrained(tmp_path)
    for name, weight in gs.nn.all_weights(model).items():
        assert torch.equal(gs.nn.all_weights(loaded)[name].dense(), weight.dense())
    assert torch.equal(model.eval()(x), loaded(x))


@every_model
@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.5)], ids=["swa", "ema"])
def test_averages(make: Any, x: torch.Tensor, average: Any) -> None:
    model = make()
    averaged = AveragedModel(model, multi_avg_fn=average)
    for _ in range(2):
        train(model, 1)
        averaged.update_parameters(model)
    assert averaged(x).isfinite().all()
    for name, mask in masks(averaged.module).items():
        weight = gs.nn.all_weights(averaged.module)[name]
        assert not weight.dense()[~mask].any()


def test_an_average_follows_the_masks_of_dynamic_training(x: torch.Tensor) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, 0.75, every=2, until=100)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(6, 16)).square().sum().backward()
        optimizer.step()
        method.step()
        averaged.update_parameters(model)
    averaged(x)
    ours, theirs = masks(model), masks(averaged.module)
    for name, mask in ours.items():
        assert torch.equal(mask, theirs[name])
        assert not averaged.module.get_parameter(name)[~mask].any()
    assert gs.summary(averaged.module).density == gs.summary(model).density


@every_model
def test_functional_call(make: Any, x: torch.Tensor) -> None:
    model = make()
    doubled = {name: 2 * p.detach() for name, p in model.named_parameters()}
    expected = copy.deepcopy(model)
    with torch.no_grad():
        for p in expected.parameters():
            p.mul_(2)
    torch.testing.assert_close(torch.func.functional_call(model, doubled, x), expected(x))
    dense = {name: w.dense() for name, w in gs.nn.all_weights(model).items()}
    before = model(x)
    torch.testing.assert_close(torch.func.functional_call(model, dense, x), before)
    assert torch.equal(model(x), before)


@every_model
def test_export(make: Any, x: torch.Tensor) -> None:
    model = make().eval()
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("how", ["50%", "2:4", "fan-in 50%", "block 2x2 50%", gs.Threshold(0.1), gs.KeepAll()], ids=str)
@pytest.mark.parametrize("name", ["body.1", "body.1:relu"])
def test_export_of_sparse_activations(how: Any, name: str, x: torch.Tensor) -> None:
    builder = gs.SparsityBuilder(Net())
    builder.set_interm(name, external_sparsifier=how)
    model = builder.get_sparse_model().eval()
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.parametrize("make", [masked, packed])
def test_moves_and_casts(make: Any, x: torch.Tensor) -> None:
    model = make()
    before = masks(model)
    model.double()
    assert all(p.dtype == torch.float64 for p in model.parameters())
    assert model(x.double()).dtype == torch.float64
    model.float().to("cpu")
    assert all(torch.equal(mask, masks(model)[name]) for name, mask in before.items())
    train(model)
    assert all(torch.equal(mask, masks(model)[name]) for name, mask in before.items())


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("make", [masked, packed])
def test_foreach_and_fused_are_one_step(make: Any, foreach: bool) -> None:
    one, other, fused = make(), None, None
    other, fused = copy.deepcopy(one), copy.deepcopy(one)
    train(one)  # torch's default
    train(other, foreach=foreach)
    train(fused, fused=True)
    for name, weight in gs.nn.all_weights(one).items():
        for model in (other, fused):
            torch.testing.assert_close(gs.nn.all_weights(model)[name].dense(), weight.dense(), rtol=1e-5, atol=1e-6)


def test_masked_training_uses_foreach_by_default() -> None:
    from torch.optim.optimizer import _foreach_supported_types

    assert gs.nn.MaskedParameter in _foreach_supported_types
