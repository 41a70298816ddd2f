"""All values of the weights that straight-through methods train."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.kernels import choosing, largest, shared_columns
from gossamer.native.build import compiler
from gossamer.train.masters import Master, write
from tests.native import emulator

MODELS = {
    "linear": (lambda: nn.Linear(8, 4), (3, 8)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3), (1, 2, 5, 5)),
    "channels last": (lambda: nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last), (1, 2, 5, 5)),
    "transposed, in groups": (lambda: nn.ConvTranspose1d(4, 8, 2, groups=2), (1, 4, 5)),
}


class Attention(nn.Module):
    """One parameter that is three layers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.inner(x, x, x)[0]


MODELS["attention"] = (Attention, (3, 1, 8))


def trained(kind, optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    make, shape = MODELS[kind]
    model = make()
    optimizer = optimizer(model.parameters(), lr=0.1)
    return model, optimizer, gs.train.SRSTE(model, optimizer, "50%", **options), torch.randn(shape)


def step(model, optimizer, method, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    method.step()


@pytest.mark.parametrize("kind", MODELS)
def test_open_shows_all_values_and_close_the_sparse_ones(kind):
    method = trained(kind)[2]
    parameter = method.layers[0].parameter
    sparse, memory = parameter.detach().clone(), parameter.data_ptr()
    master = Master(method.layers[0].source, [x for x in method.layers if x.parameter is parameter])
    master.open()
    assert all(torch.equal(x.matrix(parameter.detach()), x.extra["dense"]) for x in master.layers)
    assert torch.equal(parameter * (sparse != 0), sparse) and int((parameter == 0).sum()) == 0
    master.close()
    master.close()  # does nothing
    assert torch.equal(parameter, sparse) and parameter.data_ptr() == memory


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_by_hand(kind):
    """All weights move by the gradient at the sparse ones, and by the decay where the mask was False."""
    model, optimizer, method, x = trained(kind, decay_out=0.01)
    for _ in range(3):
        before = [layer.extra["dense"].clone() for layer in method.layers]
        outside = [~layer.mask for layer in method.layers]
        plain = copy.deepcopy(model)
        model(x).square().mean().backward()
        grads = [layer.matrix(layer.parameter.grad).clone() for layer in method.layers]
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        for layer, dense, out, grad in zip(method.layers, before, outside, grads, strict=True):
            torch.testing.assert_close(layer.extra["dense"], dense - 0.1 * (grad + 0.01 * dense * out))
            assert torch.equal(layer.mask, gs.Unstructured(0.5).select(layer.extra["dense"].abs()))
            assert torch.equal(layer.weight, layer.extra["dense"] * layer.mask)
        assert not torch.equal(model(x), plain(x))


def test_an_optimizer_that_fails_leaves_a_model_that_can_go_on():
    fails = True

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            if fails:
                raise RuntimeError("out of memory")

    model, optimizer, method, x = trained("linear", Failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        step(model, optimizer, method, x)
    fails = False
    step(model, optimizer, method, x)
    layer = method.layers[0]
    assert torch.equal(layer.weight, layer.extra["dense"] * layer.mask) and model.weight.sparsity == 0.5


def test_nan_raises_and_leaves_the_sparse_weights_as_they_were():
    model, optimizer, method, x = trained("linear")
    step(model, optimizer, method, x)
    before, mask = model.weight.detach().clone(), model.weight.mask()
    model(x).square().mean().backward()
    model.weight.grad[0, 0] = torch.nan
    with pytest.raises(ValueError, match="diverged"):
        optimizer.step()
    assert torch.equal(model.weight, before) and torch.equal(model.weight.mask(), mask)


def test_a_state_is_a_snapshot():
    model, optimizer, method, x = trained("linear")
    step(model, optimizer, method, x)
    state = method.state_dict()
    saved = state["extra"]["weight"]["dense"].clone()
    step(model, optimizer, method, x)
    assert torch.equal(state["extra"]["weight"]["dense"], saved)
    method.load_state_dict(state)
    step(model, optimizer, method, x)
    assert torch.equal(state["extra"]["weight"]["dense"], saved)


def test_a_model_may_change_its_type_in_between():
    model, optimizer, method, x = trained("linear")
    step(model, optimizer, method, x)
    model.double()
    step(model, optimizer, method, x.double())
    layer = method.layers[0]
    assert layer.extra["dense"].dtype == torch.float64
    assert torch.equal(layer.weight, layer.extra["dense"] * layer.mask)


def test_write_keeps_a_mask_that_is_not_given():
    model, _, method, _ = trained("linear")
    master = Master(method.layers[0].source, method.layers)
    mask = model.weight.mask()
    write([master], [torch.full((4, 8), torch.inf)], [None])
    assert torch.equal(model.weight.mask(), mask) and torch.equal(model.weight.isinf(), mask)
    assert int(model.weight.isnan().sum()) == 0
    write([master], [torch.ones(4, 8)], [~mask])
    assert torch.equal(model.weight.detach() == 1, ~mask) and torch.equal(model.weight.mask(), ~mask)


@pytest.mark.parametrize("change", [gs.densify_, lambda model: gs.sparsify_(model, "50%", format=gs.CSR())])
def test_a_weight_that_is_no_longer_masked_is_left_alone(change):
    model, optimizer, method, x = trained("linear")
    step(model, optimizer, method, x)
    change(model)
    format = getattr(model.weight, "format", None)
    step(model, optimizer, method, x)
    assert getattr(model.weight, "format", None) == format
    assert torch.isfinite(model.weight.detach().to_dense()).all()


@pytest.fixture
def one_launch(monkeypatch):
    """The GPU's way, with its kernel on a CPU."""
    monkeypatch.setattr(choosing, "function", emulator.function)
    monkeypatch.setattr(shared_columns, "function", emulator.function)
    monkeypatch.setattr(largest, "function", emulator.function)
    monkeypatch.setattr(choosing, "processors", lambda device: 2)
    monkeypatch.setattr(choosing, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(choosing, "_copied", lambda flag: (flag.clone(), SimpleNamespace(synchronize=lambda: None)))
    monkeypatch.setattr(Master, "on_gpu", True)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("options", [{}, {"schedule": "decay", "until": 4}, {"refresh": 2}], ids=str)
def test_one_launch_for_a_model_does_what_layer_by_layer_does(kind, options, request):
    def weights():
        torch.manual_seed(0)
        make, shape = MODELS[kind]
        model = nn.Sequential(make()).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = gs.train.SRSTE(model, optimizer, "2:4", decay_out=0.01, **options)
        x = torch.randn(shape, dtype=torch.float64)
        for _ in range(6):
            step(model, optimizer, method, x)
        return [part for layer in method.layers for part in (layer.extra["dense"], layer.mask, layer.weight)]

    expected = weights()
    request.getfixturevalue("one_launch")
    for one, other in zip(weights(), expected, strict=True):
        torch.testing.assert_close(one, other)


def wide(pattern, dtype=torch.float32, autocast=False, resume=False, shape=(16, 20), method="SRSTE", **options):
    """The weights after six steps of a network whose second layer has 20 inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(shape[0], shape[1]), nn.Tanh(), nn.Linear(shape[1], 6)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kind = getattr(gs.train, method)
    method = kind(model, optimizer, pattern, **options)
    x = torch.randn(5, shape[0], dtype=dtype)
    for count in range(6):
        if resume and count == 3:
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), method.state_dict()))
            model = nn.Sequential(nn.Linear(shape[0], shape[1]), nn.Tanh(), nn.Linear(shape[1], 6)).to(dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            method = kind(model, optimizer, pattern, **options)
            for one, each in zip((model, optimizer, method), state, strict=True):
                one.load_state_dict(each)
        with torch.autocast("cpu", enabled=autocast):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    return [part for layer in method.layers for part in (layer.extra["dense"], layer.mask, layer.weight)]


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    "options",
    [{"pattern": "all:2:8"}, {"pattern": "4:2:5"}, {"pattern": "16:2:10", "refresh": 2}, {"pattern": "all:2:4"},
     {"pattern": "1:2:8"}, {"pattern": "all:2:8", "autocast": True}, {"pattern": "all:2:20", "dtype": torch.float64},
     {"pattern": "8:2:8", "schedule": "decay", "until": 4}, {"pattern": "all:2:64"},
     {"pattern": "all:2:8", "until": 3}],
    ids=str,
)  # fmt: skip
def test_one_launch_for_shared_columns_does_what_layer_by_layer_does(options, request):
    expected = wide(**options)
    request.getfixturevalue("one_launch")
    for one, other in zip(wide(**options), expected, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(wide(resume=True, **options), wide(**options), strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    "options",
    [{"method": "STE"}, {"method": "SRSTE", "refresh": 2}, {"method": "STE", "schedule": "cubic", "until": 4},
     {"method": "STE", "until": 2, "dtype": torch.float64}, {"method": "TopKAST"}, {"method": "TopKAST", "refresh": 2},
     {"method": "TopKAST", "until": 2}, {"method": "TopKAST", "backward": 0.0}, {"method": "TopKAST", "backward": 0.75},
     {"method": "TopKAST", "score": gs.Random(0)}, {"method": "TopKAST", "pattern": "2:4"}],
    ids=str,
)  # fmt: skip
def test_few_launches_for_a_sparsity_do_what_layer_by_layer_does(options, request):
    options = {"pattern": 0.75, **options}
    expected = wide(**options)
    request.getfixturevalue("one_launch")
    launch, launches = largest.launch, []
    request.getfixturevalue("monkeypatch").setattr(largest, "launch", lambda *a: launches.append(launch(*a)))
    for one, other in zip(wide(**options), expected, strict=True):
        assert torch.equal(one, other)
    by_kernel = options["pattern"] == 0.75 and "score" not in options
    assert bool(launches) == by_kernel
    for one, other in zip(wide(resume=True, **options), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("method", ["STE", "TopKAST"])
@pytest.mark.parametrize("kind", MODELS)
def test_few_launches_for_a_sparsity_of_any_layer(kind, method, request):
    def weights():
        torch.manual_seed(0)
        make, shape = MODELS[kind]
        model = nn.Sequential(make())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method_ = getattr(gs.train, method)(model, optimizer, 0.75)
        for _ in range(4):
            step(model, optimizer, method_, torch.randn(shape))
        return [part for layer in method_.layers for part in (layer.extra["dense"], layer.mask, layer.weight)]

    expected = weights()
    request.getfixturevalue("one_launch")
    for one, other in zip(weights(), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("method", ["STE", "TopKAST"])
def test_nan_is_noticed_while_the_sparsity_rises(method, one_launch):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"schedule": "linear", "until": 9} if method == "STE" else {}
    method = getattr(gs.train, method)(model, optimizer, 0.5, **options)
    for count in range(3):
        model(torch.ones(1, 8)).sum().backward()
        if count == 1:
            model.weight.grad[0, 0] = torch.nan
        if count == 2:
            with pytest.raises(ValueError, match="diverged"):
                optimizer.step()
            return
        optimizer.step()
        method.step()


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("all:2:8", 1),
        ("4:2:8", 1),
        ("all:2:5", 1),
        ("4:2:10", 1),
        ("all:2:40", 2),
        ("all:2:4", 0),
        ("2:3", 2),
        ("75%", 0),
        ("75% per row", 2),
    ],
)
def test_what_is_left_for_torch(pattern, left, one_launch, monkeypatch):
    """A layer whose columns are no multiple of m, and patterns without a kernel."""
    monkeypatch.setattr(choosing.Chooser, "__call__", lambda self, *given: None)
    monkeypatch.setattr(choosing.Chooser, "found_nan", lambda self: False)
    model = nn.Sequential(nn.Linear(16, 20), nn.Linear(20, 6))
    method = gs.train.STE(model, torch.optim.SGD(model.parameters(), lr=0.1), pattern)
    assert len(method.choose_together(method._masters)) == left


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_one_launch_notices_nan_in_the_next_step(one_launch):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gs.train.STE(model, optimizer, "2:4")
    before = model.weight.detach().clone()
    for fails in (False, True):
        model(torch.ones(1, 8)).sum().backward()
        model.weight.grad[0, 0] = torch.nan
        if fails:
            with pytest.raises(ValueError, match="diverged"):
                optimizer.step()
        else:
            optimizer.step()
        assert torch.equal(model.weight[0, :4], before[0, :4])


def test_a_gradient_that_somebody_else_has_is_not_changed(monkeypatch):
    monkeypatch.setattr(Master, "on_gpu", True)
    model, optimizer, _, _ = trained("linear", decay_out=0.5)
    own = torch.ones(4, 8)
    model.weight.grad = own
    optimizer.step()
    assert torch.equal(own, torch.ones(4, 8))
