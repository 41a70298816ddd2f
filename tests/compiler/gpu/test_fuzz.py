"""Random expressions on a GPU: their nests in the interpreter of nests, results and gradients against dense tensors."""

import pytest

import gossamer as gs
from benchmarks import fuzz
from tests.compiler.gpu.interpreted import machine

pytestmark = pytest.mark.usefixtures("machine")
__all__ = ["machine"]
LARGE = 12  # sizes above, and the interpreter of nests is slow


@pytest.mark.parametrize("part", range(4))
def test_random_expressions(part):
    taken = 0
    with gs.fallback("error"):
        for seed in range(40 * part, 40 * (part + 1)):
            case = fuzz.case(seed)
            if any(size > LARGE for o in case.operands for size in o.shape):
                continue
            try:
                assert case.wrong() is None, case
            except NotImplementedError as error:
                assert "needs a dense copy" in str(error)
            else:
                taken += 1
    assert taken >= 15
