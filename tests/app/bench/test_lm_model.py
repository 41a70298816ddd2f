"""Texts are split into training and validation; nets have the weights that they say."""

import pytest
import torch

from gossamer.app.bench.lm_model import GPT, split, weights_of


def test_each_tenth_piece_is_held_out() -> None:
    text = bytes(number // 4096 for number in range(11 * 4096))
    train_part, held, choice = split(text)
    assert choice is None
    assert held.unique().tolist() == [9] and train_part.unique().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    with pytest.raises(ValueError, match="too short to train on"):
        split(b"a book")


def test_weights_and_causality() -> None:
    net = GPT(64, 2, 16)
    assert weights_of(net) == 2 * 12 * 64 * 64 + 64 * 256
    tokens = torch.randint(256, (2, 16))
    other = tokens.clone()
    other[:, 9:] = 0
    assert torch.allclose(net(tokens)[:, :9], net(other)[:, :9], atol=1e-5)  # no byte sees a later one
