"""To run a decision: who is told, what is computed, and what comes after a refusal."""

import pytest
import torch

import gossamer as gs
from gossamer.core import table
from gossamer.core.decide import Decision
from gossamer.core.dispatch import choose
from gossamer.core.fallback import watch
from gossamer.core.perform import compute, on_dense, perform


def csr():
    return gs.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), gs.CSR())


def decision(function, how, *args, **options):
    return Decision("op", function, how, args, {}, **options)


def test_a_decision_runs_its_call_on_its_arguments():
    assert perform(decision(lambda a, b: a - b, "native", 5, 3)) == 2
    assert perform(decision(None, "native", 5, 3, call=lambda a, b: a * b)) == 15


def test_who_watches_is_told_of_ours_but_not_of_torchs():
    with watch() as seen:
        perform(decision(max, "native", 1, 2))
        perform(decision(max, "torch", 1, 2))
        compute(decision(max, "native", 1, 2))  # part of another one, which was told
    assert [(ran.operator, ran.how) for ran in seen] == [("op", "native")]


def test_a_fallback_is_announced_and_computed_on_dense_copies():
    def reads(t, rows):
        assert type(t) is torch.Tensor and type(rows[0]) is torch.Tensor
        return t + rows[0]

    fallback = decision(reads, "fallback", csr(), [csr()], words="for the test")
    with pytest.warns(gs.FallbackWarning, match=r"op\(CSR, CSR\) ran on a dense copy: for the test"):
        assert perform(fallback).tolist() == [[0.0, 4.0], [6.0, 0.0]]
    with gs.fallback("error"), pytest.raises(NotImplementedError, match="for the test"):
        perform(fallback)
    with gs.fallback("error"):
        assert compute(fallback).tolist() == [[0.0, 4.0], [6.0, 0.0]]  # announced by the call it is part of


def test_what_is_written_to_a_dense_copy_goes_to_the_tensor():
    t = csr()
    out = on_dense(decision(lambda x: x.mul_(10), "fallback", t))
    assert out is t and t.values().tolist() == [20.0, 30.0]


def test_arguments_by_keyword_are_dense_too():
    call = Decision("op", lambda *, t: t.sum(), "fallback", (), {"t": csr()})
    assert on_dense(call).item() == 5.0


@pytest.fixture
def refusing():
    before = {name: list(entries) for name, entries in table._TABLE.items()}
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: "the second")
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: NotImplemented)
    yield
    table._TABLE.clear()
    table._TABLE.update(before)
    table._FOUND.clear()


@pytest.mark.parametrize("run", [perform, compute])
def test_after_a_refusal_the_next_one_gets_the_call(refusing, run):
    assert run(choose(torch.logdet, (csr(),))) == "the second"
