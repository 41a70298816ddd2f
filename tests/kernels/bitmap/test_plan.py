"""The plan of the bitmap kernel: what it launches fits the GPU."""

from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.bitmap import plan


@given(
    tokens=st.integers(1, plan.TOKENS),
    rows=st.integers(1, 30000),
    cols=st.integers(1, 30000),
    most=st.integers(0, 33).map(lambda n: 64 * n),
    capability=st.sampled_from([(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]),
    weight=st.sampled_from([0, 1]),
)
def test_fits(tokens, rows, cols, most, capability, weight):
    if weight:
        most, capability = max(most, 1024), (9, 0)
    launch = plan.product(tokens, rows, cols, most, capability, 0, 0, 132, weight)
    macros = launch.macros
    assert macros.get("WEIGHT", 0) == weight
    assert launch.shared <= (232448 if capability in ((9, 0), (10, 0)) else 101376)
    assert 32 <= launch.threads == 32 * macros["KW"] <= 512 and 1 <= macros["SETS"] <= macros["KW"]
    assert launch.grid[0] % macros["CLUSTER"] == 0 and 0 < launch.grid[0] <= 132 and macros["NT"] * 8 >= tokens
    assert macros["CLUSTER"] == 1 or capability >= (9, 0)
    strips, each = -(-rows // 16), macros["HIGH"] * macros["TEAM"]
    assert macros["ONCE"] == (each >= -(-strips // (launch.grid[0] // macros["CLUSTER"])))


def test_a_warp_has_few_pieces_and_x_comes_ahead():
    for most in (1536, 640):  # 50 and 90 %
        macros = plan.product(8, 14336, 4096, most, (9, 0), 1, 0, 132).macros
        assert (macros["KW"], macros["TEAM"], macros["HIGH"], macros["XS"]) == (16, 1, 7, 2)
        assert macros["KW"] * macros["SLOTS"] * plan.slot_bytes(most) >= plan.FLIGHT
    assert plan.product(64, 14336, 4096, 1536, (9, 0), 1, 0, 132).macros["TEAM"] > 1  # x has no room for each warp


def test_nothing_fits():
    made = plan.divided(14336, 1, 8, 132, 1)
    assert plan.memory_of(8, 100_000, 101376, made, 32) is None
