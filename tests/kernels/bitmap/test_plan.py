"""The plan of the bitmap kernel: what it launches fits the GPU."""

from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.bitmap import plan


@given(
    tokens=st.integers(1, plan.TOKENS),
    rows=st.integers(1, 30000),
    cols=st.integers(1, 30000),
    most=st.integers(0, 64).map(lambda n: 64 * n),
    capability=st.sampled_from([(8, 0), (8, 9), (9, 0)]),
)
def test_fits(tokens, rows, cols, most, capability):
    launch = plan.product(tokens, rows, cols, most, capability, 0, 0, 132)
    macros = launch.macros
    assert launch.shared <= (232448 if capability == (9, 0) else 101376)
    assert 32 <= launch.threads == 32 * macros["KW"] <= 512 and 1 <= macros["SETS"] <= macros["KW"]
    assert launch.grid[0] % macros["CLUSTER"] == 0 and 0 < launch.grid[0] <= 132 and macros["NT"] * 8 >= tokens
    assert macros["CLUSTER"] == 1 or capability == (9, 0)
