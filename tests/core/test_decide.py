"""The one decision: guards with their reasons, what is asked next, and what runs."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core import table
from gossamer.core.decide import candidates, kind_of
from gossamer.core.dispatch import choose
from gossamer.core.fallback import watch


def csr(n=3):
    return gs.from_dense(torch.eye(n), gs.CSR())


def small(t):
    return None if t.shape[0] < 4 else "it is too large"


@pytest.fixture
def registered():
    """Two functions for logdet: one for small CSR matrices, one for any format; removed afterwards."""
    before = {name: list(entries) for name, entries in table._TABLE.items()}

    @gs.implements(torch.logdet, (gs.Format,))
    def logdet_any(t):
        return "any"

    @gs.implements(torch.logdet, (gs.CSR,), when=small)
    def logdet_small(t):
        return "small"

    yield
    table._TABLE.clear()
    table._TABLE.update(before)
    table.changed()


def test_a_guard_decides_and_its_reason_is_told(registered):
    taken, refused = choose(torch.logdet, (csr(3),)), choose(torch.logdet, (csr(5),))
    assert (taken.how, taken.function.__name__) == ("native", "logdet_small")
    assert taken.reason == "logdet(CSR) accepts these formats"
    assert (refused.how, refused.function.__name__) == ("native", "logdet_any")
    assert refused.reason == "logdet(Format) accepts these formats; logdet(CSR) is not used: it is too large"
    assert (torch.logdet(csr(3)), torch.logdet(csr(5))) == ("small", "any")
    assert "it is too large" in gs.explain(torch.logdet, csr(5)).why


def test_the_guard_is_asked_once_and_the_function_only_if_it_takes_the_call(registered):
    asked, ran = [], []

    def guard(t):
        asked.append(t)
        return "no"

    gs.implements(torch.logdet, (gs.CSR,), when=guard)(lambda t: ran.append(t))
    assert torch.logdet(csr()) == "small"
    assert len(asked) == 1 and not ran


def test_all_refuse_then_the_reasons_are_those_of_the_fallback(registered):
    table._TABLE["logdet"].pop(0)
    table.changed()
    said = gs.explain(torch.logdet, csr(5))
    assert said.how == "fallback" and said.why == "logdet(CSR) is not used: it is too large"
    with pytest.warns(gs.FallbackWarning, match=r"logdet\(CSR\) ran on a dense copy: .*it is too large"):
        assert float(torch.logdet(csr(5))) == 0.0
    with gs.fallback("error"), pytest.raises(NotImplementedError, match=r"logdet\(CSR\) needs a dense copy: .*large"):
        torch.logdet(csr(5))


def test_a_function_may_refuse_when_it_runs_and_explain_says_that_it_may(registered):
    @gs.implements(torch.logdet, (gs.CSR,))
    def logdet_moody(t):
        return NotImplemented if float(t.to_dense()[0, 0]) > 0 else "moody"

    said = gs.explain(torch.logdet, csr())
    assert said.function.endswith("logdet_moody") and "may still return NotImplemented when it runs" in said.why
    with watch() as seen:
        assert torch.logdet(csr()) == "small"
        assert torch.logdet(-csr()) == "moody"
    assert [ran.function.rsplit(".")[-1] for ran in seen if ran.operator == "logdet"] == [
        "logdet_moody", "logdet_small", "logdet_moody",
    ]  # fmt: skip


def test_after_a_refusal_when_it_ran_the_fallback_says_so(registered):
    del table._TABLE["logdet"][:]
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: NotImplemented)
    with pytest.warns(gs.FallbackWarning, match="it returned NotImplemented when it ran"):
        torch.logdet(csr())


def test_an_option_that_a_function_does_not_know_is_a_reason():
    said = gs.explain(torch.relu, csr())
    assert said.how == "native"
    said = gs.explain(torch.trace, csr(), foo=1)
    assert said.how == "fallback" and said.why == "trace(Format) is not used: its function has no option foo"


def test_a_new_line_is_seen_by_calls_that_were_decided_before(registered):
    x, w = torch.randn(2, 3), csr()
    first = F.linear(x, w)
    assert torch.equal(F.linear(x, w), first)  # the decision is kept with the structure by now
    gs.implements(F.linear, (gs.Dense, gs.CSR, gs.Dense))(lambda x, w, b: "mine")
    assert F.linear(x, w) == "mine"


def test_kinds_of_arguments():
    t, x = csr(), torch.ones(2)
    assert (kind_of(t), kind_of(x), kind_of(2), kind_of(None)) == (gs.CSR, gs.Dense, None, None)
    assert (kind_of([t, t]), kind_of([t, x]), kind_of([1, 2])) == (gs.CSR, gs.Format, None)
    assert kind_of(gs.CSR) is kind_of((gs.CSR, 2)) is gs.CSR
    assert kind_of(torch.nn.Parameter(t)) is gs.CSR


def test_candidates_are_looked_up_once():
    assert candidates("abs", (gs.CSR,)) is candidates("abs", (gs.CSR,))


def test_where_a_dense_gradient_is_wanted_nobody_is_warned():
    p = torch.nn.Parameter(csr())
    p.grad_format = gs.Dense()
    decision = choose(torch.abs, (p,))
    assert decision.how == "fallback" and decision.quiet and "every position" in decision.reason
    with gs.fallback("error"):
        torch.abs(p).sum().backward()
    assert p.grad.tolist() == torch.ones(3, 3).sign().mul(torch.eye(3)).tolist()


def test_operands_that_python_gives_in_the_other_order():
    t, x = gs.from_dense(torch.eye(2), gs.CSR()), torch.full((2, 2), 5.0)
    with gs.fallback("silent"):
        assert t.__rsub__(x).tolist() == [[4.0, 5.0], [5.0, 4.0]]
        assert t.__rsub__(3).tolist() == [[2.0, 3.0], [3.0, 2.0]]
