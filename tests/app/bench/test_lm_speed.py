"""Inference time of trained networks: models are packed as copies, and threads are given back."""

import torch

import gossamer as gs
from gossamer.app.bench.lm_model import GPT
from gossamer.app.bench.lm_speed import fastest, one_token


def test_models_are_not_changed():
    dense, sparse = GPT(32, 1, 16), gs.sparsify_(GPT(32, 1, 16), "90%")
    before, threads = {n: t.clone() for n, t in sparse.state_dict().items()}, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = one_token({"dense": dense, "sparse": sparse}, rounds=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert list(found) == ["dense", "sparse"] and all(ms > 0 for ms in found.values())
    assert sparse.training and all(torch.equal(t, before[n]) for n, t in sparse.state_dict().items())


def test_each_call_is_made_as_often():
    counts = {"a": 0, "b": 0}

    def call(name):
        counts[name] += 1

    fastest({"a": lambda: call("a"), "b": lambda: call("b")}, rounds=3, repeats=4)
    assert counts == {"a": 12, "b": 12}
