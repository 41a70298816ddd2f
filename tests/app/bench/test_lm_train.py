"""Every method trains a tiny net on a CPU."""

import math
from pathlib import Path

import pytest
import torch

from gossamer.app.bench.lm_cases import METHODS, Case
from gossamer.app.bench.lm_model import GPT, text_of, weights_of
from gossamer.app.bench.lm_train import Setting, bits, optimizer_of, train

TINY = Setting(steps=3, batch=2, context=8, layers=1, device="cpu", looks=1)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("in the beginning was the word; " * 1500)
    return path


@pytest.mark.parametrize("case", METHODS, ids=lambda case: case.name)
def test_every_method_trains(case: Case, book: Path) -> None:
    found, model = train(Case(case.name, case.method, case.how, case.options, width=32), TINY, text_of(book))
    assert found["steps"] == 3 and 0 < found["bits"] < 9
    assert found["weights"] == weights_of(model) <= weights_of(GPT(32, 1, 8))


def test_a_net_that_knows_nothing_has_eight_bits() -> None:
    net = GPT(32, 1, 8)
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.zero_()
    assert bits(net, torch.randint(256, (100,), dtype=torch.uint8), TINY) == pytest.approx(8, abs=1e-5)


def test_linear_layers_have_their_own_learning_rate(book: Path) -> None:
    groups = optimizer_of(GPT(32, 1, 8), Case("", boost=4.0), TINY).param_groups
    assert [group["boost"] for group in groups] == [1.0, 4.0]
    assert sum(p.numel() for p in groups[1]["params"]) == 12 * 32 * 32 + 32 * 256
    found, _ = train(Case("", width=32), TINY, text_of(book), end=-math.inf)
    assert found["steps"] == 0  # the time is over
