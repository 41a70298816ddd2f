"""Every method trains a tiny net on a CPU."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gossamer.app.bench.lm_cases import METHODS, Case
from gossamer.app.bench.lm_model import GPT, Text, text_of, weights_of
from gossamer.app.bench.lm_train import Pace, Setting, Trainer, bits, optimizer_of, train

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


def test_the_learning_rate_follows_the_density(book: Path) -> None:
    case = Case("", "GMP", "90%", {"until": 1.0, "every": 1}, width=32, follow=0.5)
    trainer = Trainer(case, TINY, text_of(book), 0, None)
    seen = []
    for _ in range(3):
        trainer()
        density = trainer.method.log()["density"]
        assert trainer.optimizer.param_groups[1]["boost"] == pytest.approx(density**-0.5)
        seen.append(density)
    assert seen[0] > seen[1] > seen[2] == pytest.approx(0.1, abs=0.01)
    assert trainer.optimizer.param_groups[0]["boost"] == 1


def test_a_text_to_choose_by_is_measured_too(book: Path) -> None:
    text = text_of(book)
    found, model = train(Case("", width=32), TINY, Text(*text[:2], choice=text.held[:2000]))
    assert found["bits to choose by"] == pytest.approx(bits(model, text.held[:2000], TINY), abs=1e-4)
    assert "bits to choose by" not in train(Case("", width=32), TINY, text)[0]


def test_a_training_that_would_be_stopped_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gossamer.app.bench.lm_train.time.time", lambda: now[0])
    for end, most in ((1001.0, 1000), (500.0, 150), (100.0, 100)):
        pace, step, now[0] = Pace(1000, end), 0, 0.0
        while step < 1000 and pace(step):
            step, now[0] = step + 1, now[0] + 1.0  # a second a step
        assert step == most


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo, of a block's input
def test_compiled_blocks_train_as_eager_ones(book: Path) -> None:
    case = Case("", "RigL", "90%", {"until": 1.0, "every": 1}, width=32)
    eager, _ = train(case, TINY, text_of(book))
    compiled, _ = train(case, replace(TINY, compiled=True), text_of(book))
    assert compiled["bits"] == pytest.approx(eager["bits"], abs=2e-3)
