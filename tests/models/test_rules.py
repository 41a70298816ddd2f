"""Rules by which a weight is chosen again."""

import pytest

import gossamer as gs
from gossamer.models.rules import Rule

HOW = gs.Output.of((None, None, "50%", gs.CSR()))


def test_when_a_step_chooses_again_by_hand():
    assert [Rule(HOW, every=3, steps=n).due for n in range(7)] == [False, False, True, False, False, True, False]
    assert all(Rule(HOW, every=1, steps=n).due for n in range(3))


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", None])
def test_every_is_a_number_of_steps(every):
    Rule(HOW, every=1).check()
    with pytest.raises(ValueError, match=f"every={every!r} must be a number of optimizer steps, from 1"):
        Rule(HOW, every=every).check()


@pytest.mark.parametrize("place", ["inline", "external"])
def test_scores_that_need_more_than_the_weights_are_refused(place):
    wanda = gs.Sparsifier(gs.patterns.Unstructured(0.5), gs.scores.Wanda())
    spec = (wanda, None, None, gs.CSR()) if place == "inline" else (None, None, wanda, gs.CSR())
    with pytest.raises(ValueError, match=r"Wanda needs .*, which an optimizer step doesn't give it.*gs.Magnitude\(\)"):
        Rule(gs.Output.of(spec), every=2).check()
