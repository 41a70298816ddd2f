"""The training benchmark: resumable, and its floors are those of the issue."""

import json
import xml.etree.ElementTree

import pytest

from benchmarks import training
from benchmarks.training_plot import plot
from benchmarks.training_tables import floors, summary, table
from benchmarks.training_tasks import shifted


def rows(**accuracies):
    names = {"dense": ("dense", 0.0), "static": ("Static", 0.9), "rigl": ("RigL", 0.9), "srigl": ("SRigL", 0.9)}
    common = {"task": "t", "validation": False, "density": 0.1, "ablated": 0.0}
    return [
        {**common, "method": names[key][0], "sparsity": names[key][1], "seed": seed, "accuracy": accuracy}
        for key, found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]


@pytest.mark.parametrize(("srigl", "met"), [([96.0, 96.2], [True] * 3), ([94.9, 94.9], [False, False, False])])
def test_floors(srigl, met):
    found = summary(rows(dense=[97, 97], static=[94.9, 94.9], rigl=[96.5, 96.5], srigl=srigl))
    assert [floor["met"] for floor in floors(found)] == met


def test_tables_and_plot():
    found = summary(rows(dense=[97, 98], static=[94, 95], rigl=[96, 97], srigl=[96, 96]))
    assert "| dense | 97.5 ± 0.7 |" in table(found) and "| SRigL | 96.0 ± 0.0 |" in table(found)
    xml.etree.ElementTree.fromstring(plot(found))


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    asked = []

    def measure(cell):
        asked.append(cell)
        if len(asked) == 3:
            raise KeyboardInterrupt
        names = ("task", "method", "sparsity", "seed", "validation")
        return {name: getattr(cell, name) for name in names} | {"recipe": cell.recipe(), "accuracy": 1.0, "seconds": 1}

    monkeypatch.setattr(training, "measure", measure)
    todo = list(training.cells(["digits-mlp"], ["dense", "SRigL"], (0.9, 0.99), 2))
    path = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        training.measure_all(todo, path)
    assert len(json.loads(path.read_text())["runs"]) == 2
    assert len(training.measure_all(todo, path)) == len(todo) == 6
    assert len(asked) == 7


def test_a_run_of_another_recipe_is_another_run():
    cell = training.Cell("digits-mlp", "SRigL", 0.9, 0)
    other = training.Cell("digits-mlp", "SRigL", 0.9, 0, options=(("gamma", 0.5),))
    assert cell.key() != other.key()


def test_images_are_shifted_each_by_its_own():
    import torch

    x = torch.zeros(50, 5, 5)
    x[:, 2, 2] = 1
    found = shifted(x, 2, torch.Generator().manual_seed(0))
    assert found.sum() == 50 and len({int(image.argmax()) for image in found}) > 10
