import pytest

import gossamer as gs
from gossamer.scores import as_score
from gossamer.scores.known import SCORES


def test_names():
    assert as_score("wanda") == gs.Wanda() and as_score(gs.Random(3)) == gs.Random(3)
    assert {type(as_score(name)) for name in SCORES} == set(SCORES.values())
    with pytest.raises(ValueError, match="unknown score 'magic'; there are 'magnitude', 'wanda'"):
        as_score("magic")


def test_every_public_score_has_a_name():
    public = {c for c in vars(gs).values() if isinstance(c, type) and issubclass(c, gs.Score)} - {gs.Score}
    assert public == set(SCORES.values())
