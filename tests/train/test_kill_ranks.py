"""Four ranks, one of them killed by SIGKILL at a given step, and resumed: the same bits."""

import pytest

from benchmarks import kill_ranks


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_job_of_four_ranks_ends_with_the_same_bits():
    expected = kill_ranks.undisturbed(4, "in_order")
    for rank, step in ((2, 9), (0, 14)):
        assert kill_ranks.killed(4, rank, step, "in_order") == [expected] * 4
