import pytest
import torch

pytest.importorskip("transformers")

import gossamer as gs
from gossamer.app.demo import story
from tests.app.demo.beds import Tiny


def test_zeros_are_counted_in_dense_and_in_sparse_weights():
    model = Tiny().model()
    assert story.zeros(model) < 0.01
    assert story.zeros(gs.sparsify_(model, "2:4")) == pytest.approx(0.5)


def test_a_step_lowers_the_loss_and_keeps_the_zeros():
    teacher = Tiny().model()
    model = gs.sparsify_(Tiny().model(), "1:4")
    model.embeddings.word_embeddings.weight.data.neg_()  # something to learn
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    (batch,) = Tiny().batches(["sparse"] * 4)
    model.eval()
    losses = [story.step_of(model, teacher, optimizer, batch) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert story.zeros(model) == pytest.approx(0.75)
