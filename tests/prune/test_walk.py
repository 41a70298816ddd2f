import copy

import torch
from torch import nn

from gossamer.methods import survey
from gossamer.prune.calibration import run
from gossamer.prune.walk import Walk, find_blocks


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
        self.head = nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        first = x
        for block in self.blocks:
            x = block(x) + 1
        return self.head(x + (first if not self.skip else 0))

    skip = False


class Skipping(Residual):
    """The head looks back at the first block."""

    def forward(self, x):
        first = self.blocks[0](x)
        x = self.blocks[2](self.blocks[1](first))
        return self.head(x + first)


def layers(model, block):
    return [layer for layer in survey(model).layers if layer.name.startswith(block)]


def weights(model, block):
    return {
        f"{block}.{n}" if block else n: p.detach()
        for n, p in model.get_submodule(block).named_parameters()
        if p.dim() > 1
    }


def true_inputs(model, name, batches):
    total = 0

    def hook(module, args):
        nonlocal total
        total = total + args[0].T @ args[0]

    handle = model.get_submodule(name).register_forward_pre_hook(hook)
    with torch.no_grad():
        for batch in batches:
            model(batch)
    handle.remove()
    return total


def check(model, chain, **options):
    batches = [torch.randn(6, 4), torch.randn(3, 4)]
    walk = Walk(model, batches, run, options.get("device"), options.get("offload", False))
    assert walk.chain is chain
    for block in walk.blocks:
        own = weights(model, block)
        for name, gram in walk.inputs(block, own, layers(model, block)).items():
            torch.testing.assert_close(gram.total[0], true_inputs(model, name.removesuffix(".weight"), batches))
        walk.advance(block, own)
        assert len(walk.pruned.kept) == (1 if chain else walk.blocks.index(block) + 1)
    assert all("forward" not in m.__dict__ for m in model.modules())


def test_blocks_of_models():
    assert find_blocks(Residual()) == ["blocks.0.0", "blocks.1.0", "blocks.2.0", "head"]
    assert find_blocks(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2, enable_nested_tensor=False)) == [
        "layers.0",
        "layers.1",
    ]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2))) == ["0"]


def test_one_block_s_outputs_are_enough_in_a_chain():
    check(Residual(), chain=True)


def test_all_are_kept_where_the_model_looks_back():
    check(Skipping(), chain=False)


def test_another_device():
    check(Residual(), chain=True, device=torch.device("cpu"))
    check(Skipping(), chain=False, offload=True)


def test_a_block_that_runs_twice_makes_the_model_one_block():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.layer(self.layer(x)))

    model, x = Twice(), torch.randn(5, 4)
    walk = Walk(model, [x], run, None)
    assert walk.blocks == [""]
    own = weights(model, "")
    grams = walk.inputs("", own, layers(model, ""))
    with torch.no_grad():
        y = model.layer(x)
        torch.testing.assert_close(grams["layer.weight"].total[0], x.T @ x + y.T @ y)


def test_weights_used_behind_a_module_s_back():
    class Reaching(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.borrowed, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.linear(self.body(x), self.borrowed.weight)

    model, x = Reaching(), torch.randn(5, 4)
    walk = Walk(model, [x], run, None)
    assert walk.blocks == [""]
    own = weights(model, "")
    assert set(walk.inputs("", own, layers(model, ""))) == {"body.weight", "borrowed.weight"}
    model.forward = lambda x: model.body(x)
    assert Walk(model, [x], run, None).blocks == ["body"]


def test_forward_passes_come_back_after_an_error():
    model = Residual()
    walk = Walk(model, [torch.randn(2, 4)], run, None)
    walk.batches = [torch.randn(2, 7)]
    try:
        walk.inputs("blocks.0.0", {}, [])
    except RuntimeError:
        pass
    assert all("forward" not in m.__dict__ for m in model.modules())


def test_stages_of_a_block():
    from tests.prune.test_job import causal

    model = causal("llama")
    walk = Walk(model, [{"input_ids": torch.randint(0, 64, (2, 5))}], run, follow=True)
    found = walk.stages("model.layers.0", weights(model, "model.layers.0"), layers(model, "model.layers.0"))
    names = [[layer.name.split(".")[-2] for layer in stage] for stage in found]
    assert names == [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]


def test_the_dense_model_runs_beside():
    """Inputs of a pruned model, and how far they have moved from those of the dense one."""
    dense = Residual()
    pruned = copy.deepcopy(dense)
    with torch.no_grad():
        pruned.blocks[0][0].weight.mul_(torch.tensor([0.0, 1.0, 0.0, 1.0]))
    batches = [torch.randn(6, 4), torch.randn(3, 4)]
    walk = Walk(dense, batches, run, follow=True)
    first, second = walk.blocks[:2]
    walk.advance(first, weights(pruned, first), weights(dense, first))
    own = weights(dense, second)
    (gram,) = walk.inputs(second, own, layers(dense, second), own).values()
    inputs = [torch.cat([one.blocks[0](x) + 1 for x in batches]).detach() for one in (pruned, dense)]
    torch.testing.assert_close(gram.total[0], inputs[0].T @ inputs[0])
    torch.testing.assert_close(gram.moved[0][0], (inputs[1] - inputs[0]).T @ inputs[0])
