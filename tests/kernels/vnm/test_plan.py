"""The plan: every call has one, and what it launches fits the GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.vnm import plan as vnm_plan

SHARED = {(8, 0): 166912, (8, 6): 101376, (8, 9): 101376, (9, 0): 232448, (10, 0): 232448, (12, 0): 101376}


@pytest.mark.parametrize(
    ("tokens", "rows", "half", "v", "m", "capability", "token_major", "plan"),
    [
        (1, 64, True, 0, 8, (9, 0), True, "few"),
        (1, 64, True, 0, 4, (9, 0), True, "some"),
        (9, 64, True, 0, 8, (9, 0), True, "some"),
        (64, 20000, True, 0, 4, (9, 0), True, "some"),
        (65, 20000, True, 0, 4, (9, 0), True, "many"),
        (256, 8000, True, 0, 4, (9, 0), True, "some"),
        (257, 8000, True, 0, 4, (9, 0), True, "many"),
        (512, 4096, True, 0, 8, (9, 0), True, "some"),
        (513, 4096, True, 0, 8, (9, 0), True, "many"),
        (40, 64, True, 0, 4, (9, 0), False, "many"),
        (16, 64, True, 512, 8, (9, 0), True, "few"),
        (17, 64, True, 64, 8, (9, 0), True, "many"),
        (17, 64, True, 16, 8, (9, 0), True, "few"),
        (300, 64, True, 0, 4, (8, 0), True, "few"),
        (1000, 64, True, 0, 4, (8, 6), True, "dense"),
        (1000, 64, True, 0, 4, (10, 0), True, "dense"),
        (8, 64, True, 0, 4, (7, 5), True, "any"),
        (8, 64, True, 5, 8, (9, 0), True, "any"),
        (8, 64, False, 0, 4, (9, 0), True, "any"),
        (17, 64, False, 0, 4, (9, 0), True, "dense"),
    ],
)
def test_plans(tokens, rows, half, v, m, capability, token_major, plan):
    assert vnm_plan.choose(tokens, rows, half, v, m, capability, 132, token_major) == plan


@given(
    tokens=st.integers(1, 16),
    rows=st.integers(1, 30000),
    cols=st.integers(1, 30000),
    v=st.sampled_from([0, 16, 48, 64, 128, 192, 512]),
    capability=st.sampled_from(sorted(SHARED)),
    weight=st.sampled_from([0, 1, 3]),
)
def test_few_fits(tokens, rows, cols, v, capability, weight):
    launch = vnm_plan.few(tokens, rows, cols, v, 8, capability, 0, 0, 132, weight)
    macros = launch.macros
    assert launch.shared <= SHARED[capability] and launch.threads <= 1024
    assert macros["NT"] * 8 >= tokens
    assert launch.grid[0] // macros["CLUSTER"] * 64 * macros["RT"] >= rows
    assert macros["CLUSTER"] == 1 or capability >= (9, 0)
    if v:  # rows of a block of the launch share their columns, or it has four lists
        assert v % (16 if macros["SETS"] == 4 else 64 * macros["RT"]) == 0
    assert macros["GATHER"] == 1 or cols % 8 == 0


@given(
    tokens=st.integers(1, 1000),
    rows=st.integers(1, 30000),
    steps=st.integers(1, 1000),
    weight=st.sampled_from([0, 1, 2]),
    ahead=st.booleans(),
)
def test_some_fits(tokens, rows, steps, weight, ahead):
    launch = vnm_plan.some(tokens, rows, steps, 0, 0, 132, weight, ahead)
    macros = launch.macros
    assert launch.shared <= 232448 and launch.threads <= 1024 and macros["STAGES"] % 4 == 0
    assert launch.tiles[0] * 64 * macros["WM"] >= rows and launch.tiles[1] * macros["NB"] >= tokens
    assert launch.grid == (launch.tiles[0] * macros["CLUSTER"], launch.tiles[1], 1)
    assert steps >= macros["CLUSTER"] * macros["WK"]  # every warpgroup has one
    assert 1 <= launch.lines <= min(tokens, macros["NB"])
    assert launch.lines == tokens or macros["NB"] % launch.lines == 0
    assert launch.shared > 232448 // 2  # alone on its processor
    if macros["CLUSTER"] > 2:  # or some clusters wait for others
        assert launch.grid[0] * launch.grid[1] <= 99


@given(
    tokens=st.integers(1, 20000),
    count=st.integers(1, 300),
    blocks=st.integers(1, 500),
    steps=st.integers(1, 300),
    weight=st.sampled_from([0, 1, 2]),
)
def test_experts_fit(tokens, count, blocks, steps, weight):
    launch = vnm_plan.experts(tokens, count, 64 * blocks, steps, 0, 132, weight)
    macros, (across, parts) = launch.macros, launch.tiles
    assert launch.shared <= 232448 and launch.threads <= 1024 and macros["STAGES"] % 4 == 0 and macros["EXPERTS"] == 1
    assert macros["WEIGHT"] == weight and macros["AHEAD"] == 0 and across * macros["WM"] == blocks
    assert launch.grid == (across * macros["CLUSTER"], parts, 1) and macros["NB"] % launch.lines == 0
    assert parts >= min(count, tokens) - 1 + -(-(tokens - min(count, tokens) + 1) // macros["NB"])  # one has the rest
    assert steps >= macros["CLUSTER"] * macros["WK"]


@given(
    tokens=st.integers(1, 5000),
    cols=st.integers(1, 100_000),
    m=st.sampled_from([4, 8, 100]),
    weight=st.sampled_from([1, 2]),
)
def test_quantize_fits(tokens, cols, m, weight):
    steps = -(-cols // (32 * m))
    launch = vnm_plan.quantize(tokens, cols, m, steps, 0, weight, 132)
    assert launch.threads <= 1024 and launch.shared <= 232448 and launch.grid == (tokens, 1, 1)
    assert launch.threads * launch.macros["EACH"] >= steps * 16
