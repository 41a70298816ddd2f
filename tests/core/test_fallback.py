"""The dense fallback: right, said once, and an error if asked for."""

import importlib
import warnings

import pytest
import torch

import gossamer as gs

module = importlib.import_module("gossamer.core.fallback")  # the function of the same name hides it


@pytest.fixture
def fresh(monkeypatch):
    """Nothing has been said yet."""
    monkeypatch.setattr(module, "_told", set())


def test_it_warns_once_and_names_operator_and_formats(fresh):
    t = gs.from_dense(torch.eye(3), gs.CSR())
    with pytest.warns(gs.FallbackWarning, match=r"linalg_inv\(CSR\) ran on a dense copy: no entry"):
        torch.testing.assert_close(torch.linalg.inv(t), torch.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.linalg.inv(t)


def test_error_and_silent_policies_are_put_back(fresh):
    t = gs.from_dense(torch.eye(3), gs.CSR())
    with gs.fallback("error"), pytest.raises(NotImplementedError, match="linalg_inv"):
        torch.linalg.inv(t)
    with gs.fallback("silent"), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.linalg.inv(t)
    assert module._policy == "warn"


def test_the_policy_can_be_set_for_good(fresh):
    before = module._policy
    try:
        gs.fallback("error")
        with pytest.raises(NotImplementedError):
            torch.linalg.inv(gs.from_dense(torch.eye(3), gs.CSR()))
    finally:
        gs.fallback(before)
    with pytest.raises(ValueError, match="warn, error, silent"):
        gs.fallback("loud")


def test_gradients_flow_through_it():
    x = torch.randn(3, 3) + 3 * torch.eye(3)
    p, d = torch.nn.Parameter(gs.from_dense(x, gs.CSR())), x.clone().requires_grad_()
    with gs.fallback("silent"):
        for w in (p, d):
            torch.linalg.inv(w).sum().backward()
    torch.testing.assert_close(p.grad.to_dense(), d.grad)


def test_torch_s_own_errors_come_through():
    t = gs.from_dense(torch.ones(2, 3), gs.CSR())
    with gs.fallback("silent"), pytest.raises(RuntimeError, match="must be batches of square matrices"):
        torch.linalg.inv(t)
    with gs.fallback("silent"), pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.nn.functional.linear(torch.ones(4, 5), t)
