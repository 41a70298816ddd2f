import math

import pytest

from gossamer.schedules import SCHEDULES, as_schedule, at_step, constant, cosine, cubic, linear


def test_by_hand():
    assert [cubic(t) for t in (0, 0.5, 1)] == [0, 0.875, 1]
    assert [at_step(linear, step, 10, 0.4, 0.0) for step in (0, 5, 10, 20)] == [0.4, 0.2, 0, 0]
    # RigL as published: alpha / 2 (1 + cos(pi t / T))
    for step in range(0, 101, 7):
        assert at_step(cosine, step, 100, 0.3, 0.0) == pytest.approx(0.15 * (1 + math.cos(math.pi * step / 100)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_from_0_to_1_and_never_back(name):
    values = [SCHEDULES[name](t / 10) for t in range(15)]
    assert values == sorted(values) and 0 <= values[0] and values[11:] == [1.0] * 4
    assert name == "constant" or values[10] == 1.0


def test_the_end_is_exact():
    for schedule in (linear, cosine, cubic):
        assert at_step(schedule, 100, 100, 0.0, 0.9) == 0.9 and at_step(schedule, 100, 100, 0.3, 0.0) == 0.0


def test_a_schedule_of_no_steps():
    assert at_step(linear, 0, 0, 0.0, 0.9) == 0.9
    assert at_step(constant, 0, 0, 0.3, 0.0) == 0.3 and at_step(constant, 1, 0, 0.3, 0.0) == 0.0


def test_names_and_functions():
    assert as_schedule("cubic") is cubic and as_schedule(lambda t: t * t)(0.5) == 0.25
    with pytest.raises(ValueError, match="unknown schedule 'wild'; choose from 'constant', 'linear'"):
        as_schedule("wild")
