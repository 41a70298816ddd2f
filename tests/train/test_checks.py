"""Bad settings are said before training starts, and leave the model as it was."""

import pytest
import torch
from torch import nn

import gossamer as gs


def made(method=gs.train.RigL, optimizer=None, model=None, **options):
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    try:
        return method(model, optimizer, **{"until": 10, **options})
    except Exception:
        assert not gs.nn.sparse_weights(model)
        raise


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sparsity": 1.0}, r"sparsity=1.0 must be from 0 to below 1"),
        ({"sparsity": 90}, r"sparsity=90 must be from 0 to below 1"),
        ({"every": 0}, r"every=0 must be a number of optimizer steps, from 1"),
        ({"every": 0.5}, r"every=0.5 must be"),
        ({"every": True}, r"every=True must be"),
        ({"start": -1}, r"start=-1 must be"),
        ({"start": 11}, r"start=11 is after until=10"),
        ({"until": float("nan")}, r"until=nan must be"),
        ({"sparsity": "2:4", "pattern": "1:4"}, r"give one pattern, not 2:4 and 1:4"),
        ({"sparsity": 0.9, "pattern": "2:4"}, r"sparsity=0.9 and 2:4, which has 0.5, disagree"),
        ({"pattern": "90% per model"}, r"can't rank them together"),
        ({"pattern": gs.Threshold(0.1)}, r"isn't known in advance"),
        ({"score": gs.Wanda()}, r"Wanda\(\) needs inputs"),
        ({"score": "best"}, r"unknown score 'best'"),
        ({"growth": 0}, r"growth=0 must be a number of steps"),
        ({"growth": "mean of steps"}, r"mean of 8 steps"),
        ({"method": gs.train.Static, "score": gs.Gradient()}, r"Static: Gradient\(\) needs grad"),
        ({"method": gs.train.SRigL, "pattern": "2:4"}, r"SRigL doesn't support pattern"),
        ({"method": gs.train.Movement, "score": gs.Magnitude()}, r"Movement doesn't support score"),
        ({"method": gs.train.SRSTE, "schedule": "decay", "until": None}, r"give until=..., the step"),
        ({"method": gs.train.GMP, "until": None}, r"GMP: give until=..., the step at which the target"),
        ({"method": gs.train.ACDC, "until": None}, r"ACDC: give until="),
        ({"method": gs.train.Movement, "until": None}, r"Movement: give until="),
        ({"method": gs.train.HardConcrete, "until": None}, r"HardConcrete: give until="),
        ({"until": -1}, r"until=-1 must be"),
        ({"fraction": 2}, r"fraction=2 must be from 0 to 1"),
        ({"decay": "steep"}, r"unknown schedule 'steep'; choose from 'constant', 'linear'"),
        ({"init": "xavier"}, r"init='xavier' must be"),
        ({"distribution": "best"}, r"distribution='best' is not known"),
        ({"skip": ["nothing"]}, r"no weight that can be sparse is called 'nothing'"),
        ({"skip": "*"}, r"has no layer left"),
        ({"sparsity": 0.99}, r"leaves 1 weights, but 2 layers need at least 2"),
        ({"method": gs.train.SRigL, "gamma": 2}, r"gamma=2 must be from 0 to 1"),
        ({"method": gs.train.SRigL, "ablation": False, "sparsity": 0.9}, r"leaves 7 weights, but .* at least 9"),
        ({"method": gs.train.TopKAST, "sparsity": 0.5, "backward": 0.8}, r"backward=0.8 must be"),
        ({"method": gs.train.STE, "sparsity": gs.Sparsifier("50%", gs.Gradient())}, r"score of the weights alone"),
    ],
)
def test_settings(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_an_optimizer_without_the_weights():
    with pytest.raises(ValueError, match=r"the optimizer doesn't own 0.weight"):
        made(optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_what_is_no_optimizer():
    with pytest.raises(TypeError, match=r"the optimizer must be a torch\.optim\.Optimizer, got a NoneType"):
        gs.train.RigL(nn.Linear(8, 8), None, sparsity=0.5)


def test_sparse_already():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gs.train.Static(model, optimizer, 0.5)
    with pytest.raises(ValueError, match="weight is already sparse"):
        gs.train.Static(model, optimizer, 0.5)


def test_a_model_without_layers():
    with pytest.raises(ValueError, match="has no layer left"):
        made(model=nn.LSTM(4, 4))


def test_state_of_another_model():
    state = made().state_dict()
    with pytest.raises(ValueError, match=r"missing \['weight'\], not here \['0.weight', '2.weight'\]"):
        made(model=nn.Linear(8, 8)).load_state_dict(state)
