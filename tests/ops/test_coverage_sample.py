"""A quick part of benchmarks/coverage.py: operators of torch's own database, in the four formats of its table."""

import os
import time

import pytest
import torch

import gossamer as gs
from benchmarks import coverage, opinfo

#: Those that a sparse model calls, those with rules of their own, and some of each kind of fallback.
NAMES = [
    "__getitem__", "__rdiv__", "abs", "add", "addcdiv", "addmm", "amax", "bmm", "cat", "clamp", "cumsum",
    "div.no_rounding_mode", "exp", "expand", "exponential", "fill", "flip", "index_select", "linalg.inv",
    "linalg.vector_norm", "log_softmax", "masked_fill", "matmul", "mean", "mul", "nn.functional.batch_norm",
    "nn.functional.conv2d", "nn.functional.dropout", "nn.functional.embedding", "nn.functional.gelu",
    "nn.functional.layer_norm", "nn.functional.linear", "nn.functional.relu", "permute", "pow", "prod", "reshape",
    "softmax", "sort", "split", "squeeze", "std", "sub", "sum", "svd", "t", "where",
]  # fmt: skip
OPERATORS = {op.full_name: op for op in opinfo.operators() if op.full_name in NAMES}
MUST_BE_NATIVE = {
    "abs", "add", "addcdiv", "amax", "bmm", "cat", "clamp", "div.no_rounding_mode", "exp", "log_softmax", "mean", "mul",
    "nn.functional.dropout", "nn.functional.gelu", "nn.functional.linear", "nn.functional.relu", "permute", "prod",
    "reshape", "softmax", "split", "std", "sub", "sum", "t",
}  # fmt: skip


def test_the_database_has_them_all():
    assert sorted(OPERATORS) == sorted(NAMES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", opinfo.FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_right(name, format):
    record = opinfo.check(OPERATORS[name], format)
    assert not record.wrong, "\n".join(record.wrong)
    assert record.calls
    if name in MUST_BE_NATIVE:
        assert record.native > record.calls / 2


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (lambda out: out + 1e-3, "values"),
        (lambda out: out.float(), "values"),
        (lambda out: out[None], "values"),
        (lambda out: out.detach(), "gradient"),
        (lambda out: out * out.detach().sign().abs(), ""),
    ],
    ids=["value", "type", "shape", "gradient", "right"],
)
def test_the_judge_sees_what_is_wrong(spoil, problem):
    op = next(op for op in opinfo.operators() if op.full_name == "sin")
    sample = opinfo.samples(op)[0]
    arguments = opinfo.Arguments(sample)
    masks = arguments.masks("x", [0], full=False)
    flat = arguments.sparse(masks, gs.COO())
    dense = opinfo.attempt(arguments, op.op, arguments.dense(masks))
    sparse = opinfo.attempt(arguments, lambda x: spoil(op.op(x).to_dense()), flat)
    found = opinfo.compare(dense, sparse, flat, exact=True)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_the_judge_wants_torchs_error():
    failed = opinfo.Outcome(error=RuntimeError("no"))
    assert opinfo.compare(failed, opinfo.Outcome(error=RuntimeError("other words")), [], exact=True) == ""
    assert "instead of RuntimeError" in opinfo.compare(failed, opinfo.Outcome(error=ValueError()), [], exact=True)
    assert "instead of RuntimeError" in opinfo.compare(failed, opinfo.Outcome(out=torch.ones(1)), [], exact=True)


def test_a_crash_and_a_hang_are_recorded(monkeypatch):
    def work(name, formats, pipe):
        os._exit(7) if name == "crash" else time.sleep(60)

    monkeypatch.setattr(coverage, "TIMEOUT", 1)
    monkeypatch.setattr(coverage, "_work", work)
    found = dict(coverage.run(["crash", "hang"], ["CSR"], jobs=2))
    assert found["crash"]["CSR"].wrong == ["crashed with exit code 7"]
    assert found["hang"]["CSR"].wrong == ["took more than 1 s"]


def test_the_page_has_a_row_for_each_operator_and_says_why_one_is_skipped():
    records = {format: opinfo.Record(native=3, fallback=1, gradients=2) for format in opinfo.FORMATS}
    skipped = {format: opinfo.Record(reason="no sample has a float tensor") for format in opinfo.FORMATS}
    page = coverage.page({"mul": records, "arange": skipped})
    assert "| `mul` | mixed 3 / 4 | mixed 3 / 4 | mixed 3 / 4 | mixed 3 / 4 | yes |" in page
    assert "| `arange` | skipped | skipped | skipped | skipped | none in torch | no sample has a float tensor |" in page
