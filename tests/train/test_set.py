"""SET: drop by magnitude, grow at random."""

import gossamer as gs
from tests.train.exchanged import update


def test_the_smallest_are_dropped_and_others_grow_in_their_place():
    grown = set()
    for seed in range(12):
        before, after = update(gs.train.SET, seed)
        assert int(after.sum()) == int(before.sum()) == 4
        grown |= set((after & ~before).flatten().nonzero().view(-1).tolist())
    assert len(grown) > 3  # not always the same ones


def test_growth_at_random_is_the_usual():
    assert gs.train.SET.usual.score is None
