"""Plans for the GPU without a compiler: each launch runs its nest in the interpreter of nests."""

import pytest
import torch

from gossamer.compiler.gpu import kernel
from gossamer.compiler.gpu.bound import Bound
from gossamer.compiler.gpu.plan import VALUES, GpuPlan
from gossamer.compiler.loops import names
from gossamer.compiler.loops.machine import Machine
from tests.compiler.gpu.emulated import _forget

_step, _own = Bound._step, {}


def _noted(self, program, mapping, arrays, numbers, count, slots):
    _step(self, program, mapping, arrays, numbers, count, slots)
    _own[id(self.steps[-1].arguments)] = (self.steps[-1].arguments, arrays, numbers)


def _launch(self, values, out, bound):
    """As :meth:`GpuPlan._launch`; an index that is out of range is an error."""
    parts = None
    for number, step in enumerate(bound.steps):
        _, arrays, numbers = _own[id(step.arguments)]
        nest = step.kernel.nest
        given = {n: a.reshape(-1).tolist() for n, a in arrays.items()}
        brought = enumerate(values) if number == 0 else [(1, parts)]
        given |= {names.values(k): v.reshape(-1) if v.is_contiguous() else _memory(v) for k, v in brought}
        given = {n: v.tolist() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        if step.slots:
            parts = torch.full((step.slots, *bound.part.stored), torch.nan, dtype=torch.float64).to(
                VALUES[self.dtype][1]
            )
        before = {names.OUT: out, **({names.PART: parts} if step.part is not None and parts is not None else {})}
        if all(step.grid):
            done = Machine({**given, **{n: t.reshape(-1).tolist() for n, t in before.items()}}, numbers).run(nest)
            for name, tensor in before.items():
                tensor.copy_(torch.tensor(done[name], dtype=torch.float64).view(tensor.shape))
    return parts


def _memory(tensor):
    """All that a strided tensor may reach, from its first element on."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((reach,), (1,))


@pytest.fixture
def machine(monkeypatch):
    """Let ``gs.einsum`` take every tensor for one on a GPU, and interpret its nests."""
    _forget()
    monkeypatch.setattr(kernel, "on_gpu", lambda device: True)
    monkeypatch.setattr(Bound, "_step", _noted)
    monkeypatch.setattr(GpuPlan, "_launch", _launch)
    yield
    _own.clear()
    _forget()
