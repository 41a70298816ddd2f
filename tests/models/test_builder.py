"""SparsityBuilder: weights, activations and their gradients."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.support import is_sparse

transformers = pytest.importorskip("transformers")


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def bert():
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertModel(config)


QUERY = "encoder.layer.*.attention.self.query.weight"


def test_the_example_of_the_readme():
    sb = gs.SparsityBuilder(bert())
    sb.set_weight(QUERY, initial_sparsifier=gs.sparsifiers.ScalarFraction(0.9), out_format=gs.CSR())
    above = gs.sparsifiers.ScalarThreshold(0.01)
    sb.set_interm("encoder.layer.0.output", external_sparsifier=above, out_format=gs.COO())
    sparse = sb.get_sparse_model()
    seen = []
    sparse.encoder.layer[1].attention.self.query.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    with gs.fallback("silent"):
        sparse(torch.randint(0, 50, (2, 7))).last_hidden_state.sum().backward()
    assert seen[0].format == gs.COO()
    assert float(seen[0]._values.detach().abs().min()) > 0.01
    assert [layer.attention.self.query.weight.format for layer in sparse.encoder.layer] == [gs.CSR()] * 2
    assert isinstance(sparse.encoder.layer[0].attention.self.query.weight.grad, gs.SparseTensor)


def test_a_bert_trains_step_by_step_like_masked_dense_training():
    torch.manual_seed(0)
    model = bert().double()  # where a gradient is zero in theory, Adam turns its rounding errors into steps
    sb = gs.SparsityBuilder(model)
    names = [n for n, p in model.encoder.named_parameters() if p.dim() == 2]
    for i, name in enumerate(names):
        format = [gs.CSR(), gs.CSC(), gs.COO(), gs.Masked(), gs.ELL(), gs.BSR((4, 4))][i % 6]
        how = gs.Blocks(0.8, (4, 4)) if isinstance(format, gs.BSR) else "80%"
        sb.set_weight(f"encoder.{name}", initial_sparsifier=how, out_format=format)
    sparse = sb.get_sparse_model()
    masks = {n: w.mask() for n, w in gs.nn.sparse_weights(sparse).items()}
    assert len(masks) == len(names) == 12
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1) for m in (sparse, model)]
    data = [torch.randint(0, 50, (4, 9)) for _ in range(12)]
    for tokens in data:
        losses = []
        for m, optimizer in zip((sparse, model), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(m(tokens).last_hidden_state[:, 0].square().mean())
            losses[-1].backward()
            if m is model:
                for name, mask in masks.items():
                    m.get_parameter(name).grad.mul_(mask)
            optimizer.step()
            if m is model:
                with torch.no_grad():
                    for name, mask in masks.items():
                        m.get_parameter(name).mul_(mask)
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-9, atol=1e-12)
    for name, mask in masks.items():
        trained, expected = gs.nn.all_weights(sparse)[name], model.get_parameter(name).detach()
        assert torch.equal(trained.mask(), mask)
        torch.testing.assert_close(trained.dense(), expected, rtol=1e-5, atol=1e-7)


def test_the_given_model_is_left_alone():
    model = network()
    sb = gs.SparsityBuilder(model)
    sb.set_weight("*.weight", initial_sparsifier="50%")
    assert is_sparse(sb.get_sparse_model()[0].weight)
    assert type(model[0].weight) is nn.Parameter


def test_weight_gradients_in_the_format_asked_for():
    sb = gs.SparsityBuilder(network())
    sb.set_weight("0.weight", initial_sparsifier="50%", out_format=gs.CSR())
    sb.set_weight_grad("0.weight", external_sparsifier=gs.sparsifiers.ScalarFraction(0.9), out_format=gs.COO())
    sb.set_weight_grad("2.weight", external_sparsifier="75%", out_format=gs.CSC())
    model = sb.get_sparse_model()
    x = torch.randn(4, 16)
    model(x).square().sum().backward()
    assert model[0].weight.grad.format == gs.COO()
    assert model[0].weight.grad.nnz == 512 - round(0.9 * 512)
    assert model[2].weight.grad.format == gs.CSC()
    optimizer, mask = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model[0].weight.mask()
    optimizer.step()
    assert torch.equal(model[0].weight.mask(), mask)


def test_gradients_of_activations():
    sb = gs.SparsityBuilder(network())
    sb.set_interm_grad("1", external_sparsifier="90%", out_format=gs.COO())
    model = sb.get_sparse_model()
    model(torch.randn(4, 16)).sum().backward()
    # the gradient that reaches the first layer has at most 13 of 128 entries
    assert int((model[0].weight.grad.abs().sum(1) > 0).sum()) <= 13


def test_operators_inside_a_module():
    class Block(nn.Module):
        def forward(self, x):
            return (x + 1).relu() + x

    model = nn.Sequential(Block(), nn.Linear(8, 4))
    sb = gs.SparsityBuilder(model)
    assert sb.intermediates(torch.randn(2, 8)) == ["0", "0:add", "0:relu", "0:add_1", "1", "1:linear"]
    sb.set_interm("0:relu", external_sparsifier=gs.sparsifiers.ScalarThreshold(0.5), out_format=gs.CSR())
    sparse, x = sb.get_sparse_model(), torch.randn(2, 8)
    middle = (x + 1).relu()
    expected = middle * (middle > 0.5) + x
    torch.testing.assert_close(sparse(x), model[1](expected))


def test_choosing_anew_every_few_steps():
    sb = gs.SparsityBuilder(network())
    sb.set_weight("*.weight", initial_sparsifier="50%", external_sparsifier="80%", out_format=gs.CSR(), every=3)
    model = sb.get_sparse_model()
    dense = gs.densify_(gs.SparsityBuilder(model).get_sparse_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    values, masks = model[0].weight_values, [model[0].weight.mask()]
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        weight = model[0].weight
        masks.append(weight.mask())
        assert model[0].weight_values is values and weight.format == gs.CSR()
        momentum = optimizer.state[values]["momentum_buffer"]
        assert momentum.shape == values.shape == (weight.nnz,)  # what is dropped takes its momentum with it
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[2], masks[3])
    assert weight.nnz == 512 - round(0.8 * 512)
    assert bool((masks[6] & ~masks[0]).any())  # weights can come back
    assert type(dense[0].weight) is nn.Parameter


def test_choosing_anew_is_the_sparsifier_of_the_dense_update():
    sb = gs.SparsityBuilder(nn.Linear(16, 8, bias=False))
    sb.set_weight("weight", initial_sparsifier="75%", every=1)
    model = sb.get_sparse_model()
    start, x = model.weight.detach().clone(), torch.randn(4, 16)
    grad = (2 * (x @ start.T)).T @ x
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    optimizer.step()
    expected = gs.sparsify(start - 0.1 * grad, "75%").to_dense()
    torch.testing.assert_close(model.weight.detach().to_dense(), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda sb: sb.set_weight("0.wieght"), "did you mean '0.weight'"),
        (lambda sb: sb.set_interm("7"), "no module is called '7'"),
        (lambda sb: sb.set_weight("0.weight", initial_sparsifier="lots"), "lots"),
        (lambda sb: sb.set_weight("0.weight", initial_sparsifier="50%", every=0) or sb.get_sparse_model(), "every=0"),
        (lambda sb: sb.set_weight("0.weight", out_format="XYZ"), "unknown format 'XYZ'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(gs.SparsityBuilder(network()))


@pytest.mark.parametrize(
    "move", [lambda m: m.double(), copy.deepcopy, lambda m: gs.SparsityBuilder(m).get_sparse_model()]
)
def test_the_rule_goes_with_the_model(move):
    sb = gs.SparsityBuilder(network())
    sb.set_weight("0.weight", initial_sparsifier="50%", external_sparsifier="75%", every=1)
    model = move(sb.get_sparse_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 16, dtype=model[0].weight.dtype)).sum().backward()
    optimizer.step()
    assert model[0].weight.sparsity == 0.75


def test_inline_then_external_when_choosing_anew():
    sb = gs.SparsityBuilder(nn.Linear(16, 8, bias=False))
    sb.set_weight(
        "weight", initial_sparsifier="50%", inline_sparsifier="2:4", tmp_format=gs.CSR(), external_sparsifier="75%"
    )
    model = sb.get_sparse_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    mask = model.weight.mask()
    assert int(mask.sum()) == 32
    assert int(mask.view(8, 4, 4).sum(-1).max()) <= 2


def test_a_choice_that_fails_leaves_the_weight_as_sparse_as_it_was():
    sb = gs.SparsityBuilder(nn.Linear(16, 8, bias=False))
    sb.set_weight("weight", initial_sparsifier="75%", out_format=gs.CSR(), every=1)
    model = sb.get_sparse_model()
    mask, optimizer = model.weight.mask(), torch.optim.SGD(model.parameters(), lr=float("nan"))
    model(torch.randn(4, 16)).sum().backward()
    with pytest.raises(ValueError, match="NaN"):
        optimizer.step()
    assert torch.equal(model.weight.mask(), mask)
    assert model.weight.format == gs.CSR()


def test_scores_that_a_step_can_t_feed_are_refused():
    sb = gs.SparsityBuilder(network())
    with pytest.raises(ValueError, match="Movement needs grad"):
        sb.set_weight("0.weight", initial_sparsifier="50%", external_sparsifier=gs.sparsifiers.Movement(0.5))


def test_an_unknown_operator_inside_a_module_is_noticed():
    sb = gs.SparsityBuilder(network())
    sb.set_interm("1:relux", external_sparsifier="50%", out_format=gs.CSR())
    with pytest.raises(ValueError, match="no operator in ReLU is called 'relux'; did you mean 'relu'"):
        sb.get_sparse_model()(torch.randn(2, 16))


@pytest.mark.parametrize("keep", [gs.KeepAll(), gs.sparsifiers.KeepAll(), "keep-all"])
@pytest.mark.parametrize("format", [gs.CSR(), gs.Masked(), gs.COO()])
def test_keep_all_written_out_fixes_the_pattern(keep, format):
    """STen's defaults: nothing is chosen anew, so nothing is filled."""
    sb = gs.SparsityBuilder(nn.Sequential(nn.Linear(16, 16)))
    sb.set_weight("0.weight", "90%", keep, None, keep, format)
    model = sb.get_sparse_model()
    mask = model[0].weight.mask()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model[0].weight.mask(), mask) and int(mask.sum()) == 26


def test_in_place_with_an_optimizer_that_trains_already():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    parameters = list(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    sb = gs.SparsityBuilder(model, inplace=True, optimizer=optimizer)
    sb.set_weight("0.weight", "75%", out_format=gs.CSR())
    sb.set_weight("2.weight", "50%")
    assert sb.get_sparse_model() is model and model[0].weight.nnz == 16
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert optimizer.state[parameters[0]]["exp_avg"].shape == (16,)
    masked = optimizer.state[model[2].weight]["exp_avg"]
    assert (masked[~model[2].weight.mask()] == 0).all()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    assert model[0].weight.nnz == 16 and model[2].weight.nnz == 8


def test_in_place_an_error_changes_nothing():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight.data[0, 0] = float("nan")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    sb = gs.SparsityBuilder(model, inplace=True)
    sb.set_weight("*.weight", "50%")
    with pytest.raises(ValueError, match="NaN"):
        sb.get_sparse_model()
    assert list(model.state_dict()) == list(before) and type(model[0]) is nn.Linear
    assert all(torch.equal(p.nan_to_num(), before[name].nan_to_num()) for name, p in model.named_parameters())
    with pytest.raises(ValueError, match="inplace=True"):
        gs.SparsityBuilder(model, optimizer=torch.optim.SGD(model.parameters()))
    with pytest.raises(TypeError, match="Optimizer"):
        gs.SparsityBuilder(model, inplace=True, optimizer=3)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x) + x) + 1


def test_operators_of_the_model_itself(tmp_path):
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(3, 8)
    sb = gs.SparsityBuilder(model)
    assert sb.intermediates(x) == ["fc", "fc:linear", ":add", ":relu", ":add_1"]
    sb.set_interm(":relu", external_sparsifier=gs.sparsifiers.ScalarThreshold(0.5), out_format=gs.COO())
    sparse = sb.get_sparse_model()
    inner = torch.relu(model.fc(x) + x)
    expected = inner * (inner.abs() >= 0.5) + 1
    with gs.fallback("silent"):
        torch.testing.assert_close(sparse(x), expected)
        torch.save(sparse, tmp_path / "m.pt")
        torch.testing.assert_close(torch.load(tmp_path / "m.pt", weights_only=False)(x), expected)
