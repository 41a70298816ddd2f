"""Norms, variances and standard deviations: dense results from stored entries."""

import pytest
import torch

import gossamer as gs
from gossamer.core.join import from_entries
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)
#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "the nuclear norm": (lambda t: torch.norm(t, "nuc"), "norm of matrices"),
    "the spectral norm": (lambda t: torch.linalg.norm(t, 2), "norm of matrices"),
    "a negative order": (lambda t: torch.linalg.vector_norm(t, -1.0), "positive number"),
    "another matrix norm": (lambda t: torch.linalg.matrix_norm(t, 1), "norm of matrices"),
    "a type along a dimension": (lambda t: torch.linalg.vector_norm(t, 2, 1, dtype=torch.float64), "no dtype"),
    "of integers": (lambda t: torch.linalg.vector_norm(t.int()), "no floats"),
    "a variance of integers": (lambda t: torch.var(t.int()), "no floats"),
    "too few values": (lambda t: torch.var(t, 0, correction=9), "correction"),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    f, words = REFUSED[name]
    t = sample((4, 5), gs.CSR())
    try:
        torch.testing.assert_close(f(t.to_dense()), f(t.to_dense()))
    except (RuntimeError, AssertionError):  # an error, or NaN and inf: only the reason is compared
        with gs.fallback("error"), pytest.raises(NotImplementedError, match=words):
            f(t)
        return
    check_refused(f, words, t)


@formats
@pytest.mark.parametrize("f", [torch.var, torch.std], ids=["var", "std"])
def test_three_ways_to_say_how_much_is_lost(format, f):
    t = sample((4, 5), format)
    check(lambda t: f(t, 0, unbiased=False), t)
    check(lambda t: f(t, False), t)
    check(lambda t: f(t, 1, correction=2), t)
    check(lambda t: torch.var_mean(t, 1)[1], t)


@formats
def test_norms_and_their_gradient_at_zero(format):
    t = sample((5, 7), format)
    for p in (1, 2, 3, float("inf")):
        check(lambda t, p=p: torch.norm(t, p), t)
    for p in (1, 2, 3):
        check(lambda t, p=p: torch.norm(t, p, dim=1), t, gradients=p > 1)
    empty = from_entries(torch.tensor([], dtype=torch.long), torch.zeros(0, dtype=torch.float64), (3, 3), format)
    check(lambda t: torch.linalg.vector_norm(t, 2, 1), empty)


@formats
def test_norms_of_matrices(format):
    t = sample((3, 4, 5), format)
    check(torch.linalg.norm, t)
    check(torch.linalg.matrix_norm, t)
    check(lambda t: torch.linalg.norm(t, torch.inf, dim=1), t)
