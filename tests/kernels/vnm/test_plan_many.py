"""The launch for many tokens fits the GPU."""

from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.vnm import plan_many


def test_by_hand():
    launch = plan_many.many(256, 128, 4, 0, 4, (True, True), 0, 0, 132)
    assert launch.name == "vnm_many" and launch.grid == (launch.tiles[0] * launch.tiles[1], 1, 1)
    assert launch.macros["GATHER"] == 0 and launch.macros["X_TOKENS"] == launch.macros["Y_TOKENS"] == 1
    assert plan_many.many(256, 129, 4, 0, 4, (True, True), 0, 0, 132).macros["OUT"] == 0  # lines of 258 bytes


@given(
    tokens=st.integers(17, 9000),
    rows=st.integers(1, 30000),
    steps=st.integers(1, 1000),
    v=st.sampled_from([0, 64, 128, 192, 256, 384, 512]),
    m=st.sampled_from([4, 8]),
    weight=st.sampled_from([0, 1, 2]),
)
def test_many_fits(tokens, rows, steps, v, m, weight):
    m, v = (4 if weight else m), (0 if m == 4 or weight else v)
    launch = plan_many.many(tokens, rows, steps, v, m, (weight > 0, False), 0, 0, 132, weight)
    assert launch is not None
    macros = launch.macros
    high = 64 * macros["MT"] * macros["WM"]
    assert launch.shared <= 232448 and macros["STAGES"] >= 3
    tall = (
        launch.tiles[0] * high if macros["WM"] < 3 else launch.tiles[0] // 3 * 512 + (0, 128, 320)[launch.tiles[0] % 3]
    )
    broad = macros["NB"] * macros["WN"] * (2 if macros["WM"] == 3 else 1)
    assert tall >= rows and launch.tiles[1] * broad >= tokens
    assert broad % launch.lines == 0 or launch.lines == tokens
    assert launch.grid[0] <= 132 and v % high == 0


def test_lists_that_do_not_fit():
    assert plan_many.many(4096, 4096, 4000, 0, 8, (False, False), 0, 0, 132) is None
