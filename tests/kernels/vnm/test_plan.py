"""The plan: every call has one, and what it launches fits the GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.vnm import plan as vnm_plan

SHARED = {(8, 0): 166912, (8, 6): 101376, (8, 9): 101376, (9, 0): 232448, (10, 0): 232448, (12, 0): 101376}


@pytest.mark.parametrize(
    ("tokens", "half", "v", "capability", "plan"),
    [
        (1, True, 0, (9, 0), "few"),
        (16, True, 512, (9, 0), "few"),
        (17, True, 64, (9, 0), "many"),
        (17, True, 16, (9, 0), "few"),
        (300, True, 0, (8, 0), "few"),
        (1000, True, 0, (8, 6), "dense"),
        (1000, True, 0, (10, 0), "dense"),
        (8, True, 0, (7, 5), "any"),
        (8, True, 5, (9, 0), "any"),
        (8, False, 0, (9, 0), "any"),
        (17, False, 0, (9, 0), "dense"),
    ],
)
def test_plans(tokens, half, v, capability, plan):
    assert vnm_plan.choose(tokens, half, v, capability) == plan


@given(
    tokens=st.integers(1, 16),
    rows=st.integers(1, 30000),
    cols=st.integers(1, 30000),
    v=st.sampled_from([0, 16, 48, 64, 128, 192, 512]),
    capability=st.sampled_from(sorted(SHARED)),
)
def test_few_fits(tokens, rows, cols, v, capability):
    launch = vnm_plan.few(tokens, rows, cols, v, 8, capability, 0, 0, 132)
    macros = launch.macros
    assert launch.shared <= SHARED[capability] and launch.threads <= 1024
    assert macros["NT"] * 8 >= tokens
    assert launch.grid[0] // macros["CLUSTER"] * 64 * macros["RT"] >= rows
    assert macros["CLUSTER"] == 1 or capability >= (9, 0)
    if v:  # rows of a block of the launch share their columns, or it has four lists
        assert v % (16 if macros["SETS"] == 4 else 64 * macros["RT"]) == 0
    assert macros["GATHER"] == 1 or cols % 8 == 0


@given(
    tokens=st.integers(17, 9000),
    rows=st.integers(1, 30000),
    steps=st.integers(1, 1000),
    v=st.sampled_from([0, 64, 128, 192, 256, 384, 512]),
    m=st.sampled_from([4, 8]),
)
def test_many_fits(tokens, rows, steps, v, m):
    v = 0 if m == 4 else v
    launch = vnm_plan.many(tokens, rows, steps, v, m, (False, False), 0, 0, 132)
    assert launch is not None
    macros = launch.macros
    high = 64 * macros["MT"] * macros["WM"]
    assert launch.shared <= 232448 and macros["STAGES"] >= 3
    tall = (
        launch.tiles[0] * high if macros["WM"] < 3 else launch.tiles[0] // 3 * 512 + (0, 128, 320)[launch.tiles[0] % 3]
    )
    assert tall >= rows and launch.tiles[1] * launch.broad >= tokens
    assert launch.grid[0] <= 132 and v % high == 0


def test_lists_that_do_not_fit():
    assert vnm_plan.many(4096, 4096, 4000, 0, 8, (False, False), 0, 0, 132) is None
