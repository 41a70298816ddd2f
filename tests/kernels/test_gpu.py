"""What kernels know of a GPU, and calls by the kind of their operands."""

import re
from pathlib import Path

import pytest
import torch

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.native.cuda import calls
from gossamer.native.cuda.calls import Buffer, Call


def kinds(made, prepare=lambda *arguments: arguments):
    def decide(x, count):
        if count < 0:
            raise RuntimeError("below zero")
        made.append((tuple(x.shape), x.stride(), count))
        return Call((Buffer((count,), (1,), torch.float32),), (), (0,))

    return gpu.Kinds(1, prepare, decide, lambda x, count: x * 0)


def test_a_kind_is_decided_once():
    made = []
    one = kinds(made)
    for _ in range(2):
        assert one.run(torch.zeros(4, 4), 3).shape == (3,)
        assert one.run(torch.zeros(4, 4).t(), 5).shape == (5,)
    assert made == [((4, 4), (4, 1), 3), ((4, 4), (1, 4), 5)]


def test_what_is_not_aligned_is_copied():
    made = []
    assert kinds(made).run(torch.zeros(40)[1:9], 2).shape == (2,) and len(made) == 1


def test_without_a_kernel():
    made = []
    assert kinds(made, lambda *arguments: None).run(torch.ones(3), 2).tolist() == [0, 0, 0] and not made


def test_only_operands_as_they_were_given_are_remembered(monkeypatch):
    remembered = []
    monkeypatch.setattr(calls, "remember", lambda call, device: remembered.append(call))
    kinds([], lambda x, count: (x.clone(), count)).slow(torch.zeros(4), 1)
    assert not remembered
    kinds([]).slow(torch.zeros(4), 1)
    assert len(remembered) == 1


def test_errors_are_raised_or_handed_over(monkeypatch):
    with pytest.raises(RuntimeError, match="below zero"):
        kinds([]).slow(torch.zeros(4), -1)
    said = []
    monkeypatch.setattr(calls, "refuse", lambda why: said.append(why) or True)
    assert kinds([]).slow(torch.zeros(4), -1).numel() == 0 and said == ["below zero"]


def test_a_server_sees_every_number_of_tokens(monkeypatch):
    monkeypatch.setattr(gpu, "MOST_KINDS", 3)
    one = kinds([])
    for tokens in range(1, 10):
        one.run(torch.zeros(tokens), 1)
    assert len(one._calls) <= 3


@pytest.mark.parametrize(
    "x", [torch.zeros(3, 10), torch.zeros(16, 3).t(), torch.zeros(3, 40)[:, 1:17], torch.zeros(1, 8).expand(5, 8)]
)
def test_token_lines(x):
    x = x.half()
    lines = gpu.token_lines(x)
    assert torch.equal(lines, x) and lines.stride(1) == 1 and lines.stride(0) % 8 == 0 and lines.data_ptr() % 16 == 0
    assert gpu.token_lines(lines) is lines


def doubled(made):
    """The calls of an operator on tokens x 3 that gives tokens x 2, as if a kernel had filled it."""

    def decide(x):
        made.append(tuple(x.shape))
        return Call((Buffer((x.shape[0], 2), (2, 1), torch.float32),), ())

    return gpu.Kinds(1, lambda x: (x,), decide, lambda x: x, 0)


def test_tokens_in_more_dimensions_are_a_matrix_to_the_kernel(monkeypatch):
    made, remembered = [], []
    monkeypatch.setattr(calls, "remember", lambda call, device: remembered.append(call.buffers[-1]))
    one = doubled(made)
    assert one.run(torch.zeros(4, 5, 3)).shape == (4, 5, 2) and made == [(20, 3)]
    assert one.slow(torch.zeros(4, 5, 3)).shape == (4, 5, 2) and made == [(20, 3)]
    assert remembered == [Buffer((4, 5, 2), (10, 2, 1), torch.float32)]  # the next such call needs no Python
    one.slow(torch.zeros(5, 4, 3).transpose(0, 1))  # which had to be copied
    assert len(remembered) == 1


def test_only_contiguous_results_have_more_dimensions():
    x = torch.zeros(2, 3, 4)
    call = Call((Buffer((6, 5), (1, 6), torch.float32),), ())
    assert gpu.for_more_dimensions(call, x, x.view(6, 4)) is None


def test_every_operator_is_launched_without_python_too():
    """Where the library of launch.cpp is there, it alone is the GPU's implementation: none may be missing from it."""
    root = Path(gs.__file__).parent
    sources = [path.read_text() for path in (root / "kernels").rglob("*.py")]
    registered = {name for text in sources for name in re.findall(r'gpu\.register\(_?\w+, "(\w+)"', text)}
    table = re.findall(r'\{"(\w+)", GS_SPACE "::(\w+)", "(\w+)"\}', (root / "native/cuda/launch.cpp").read_text())
    assert registered <= {name for name, _, _ in table} and len(registered) > 6
    letters = {"Tensor": "t", "Optional[Tensor]": "o", "int": "i", "float": "i"}
    for name, slow, types in table:
        for operator in (name, slow):
            schema = getattr(torch.ops.gossamer, operator).default._schema
            assert "".join(letters[str(argument.type)] for argument in schema.arguments) == types, operator
