"""Checks of what people pass to patterns, and exact fractions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns._checks import (
    as_count,
    as_fraction,
    as_matrix,
    check_n_of_m,
    check_scores,
    dropped,
    matrix_shape,
    shortest,
)  # fmt: skip


def test_fractions():
    assert [as_fraction("p", v) for v in (0, 1, 0.25)] == [0.0, 1.0, 0.25]
    for wrong in (True, "0.5", None, 1j):
        with pytest.raises(TypeError, match=r"^p must be a number from 0 to 1, got .* of type"):
            as_fraction("p", wrong)
    for wrong in (-0.1, float("nan"), 101, float("inf")):
        with pytest.raises(ValueError, match=r"p must be from 0 \(keep all\) to 1 \(drop all\), got [^?]*\.$"):
            as_fraction("p", wrong)
    with pytest.raises(ValueError, match=r"got 1\.5\.$"):  # no percentage, so no suggestion
        as_fraction("sparsity", 1.5)
    with pytest.raises(ValueError, match=r"got 90\. Did you mean 0\.9\?"):
        as_fraction("p", 90)


def test_counts():
    assert as_count("n", 3) == 3 and as_count("n", 0, at_least=0) == 0 and type(as_count("n", 3)) is int
    for wrong in (True, 2.0, "3"):
        with pytest.raises(TypeError, match="n must be an integer >= 1, got"):
            as_count("n", wrong)
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        as_count("n", 1, at_least=2)


def test_n_of_m():
    check_n_of_m("NM", 4, 4)
    with pytest.raises(ValueError, match=r"NM keeps n of every m values.* got n=8, m=4\. Did you mean 4:8\?"):
        check_n_of_m("NM", 8, 4)


@pytest.mark.parametrize(
    ("sparsity", "n", "want"),
    [
        (0.35, 10, 4),  # 3.5, half to even; as a binary number it would be 3.4999
        (0.25, 10, 2),  # 2.5
        (0.45, 10, 4),  # 4.5
        (0.9, 8192, 7373),
        (1.0, 7, 7),
        (0.0, 7, 0),
        (0.29, 100, 29),  # 0.29 * 100 is 28.999999999999996
        (1e-05, 100_000, 1),
    ],
)
def test_how_many_are_dropped(sparsity, n, want):
    assert dropped(sparsity, n) == want


@settings(max_examples=60)
@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_shortest_fraction_drops_exactly_so_many(case):
    gone, of = case
    assert dropped(shortest(gone, of), of) == gone


def test_the_shortest_fraction_by_hand():
    assert (shortest(7373, 8192), shortest(1, 3), shortest(1, 2), shortest(0, 9)) == (0.9, 0.3, 0.5, 0.0)


def test_scores_are_detached_and_of_a_type_that_ranks():
    x = torch.ones(2, requires_grad=True)
    assert not check_scores(x, "NM").requires_grad
    assert check_scores(x.bfloat16(), "NM").dtype is torch.float32
    assert check_scores(x.double(), "NM").dtype is torch.float64
    with pytest.raises(TypeError, match="NM needs a tensor of scores, got list"):
        check_scores([1.0], "NM")
    for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.complex64)):
        with pytest.raises(TypeError, match="NM needs real floating-point scores, got torch"):
            check_scores(wrong, "NM")
    with pytest.raises(ValueError, match=r"NM can't rank NaN: 1 of 6 scores of shape \(2, 3\) are NaN"):
        check_scores(torch.tensor([[1.0, 2.0, float("nan")], [0.0, float("inf"), 1.0]]), "NM")
    with pytest.raises(ValueError, match="NM can't rank what is on the meta device"):
        check_scores(torch.ones(2, 2, device="meta"), "NM")


@pytest.mark.parametrize(
    ("shape", "want"), [((), (1, 1)), ((5,), (1, 5)), ((2, 3), (2, 3)), ((4, 3, 2, 2), (4, 12)), ((0, 3), (0, 3))]
)
def test_tensors_as_matrices(shape, want):
    assert matrix_shape(shape) == want and as_matrix(torch.ones(shape)).shape == want
