"""Run a plan's loop nest in the interpreter instead of as C."""

import torch

from gossamer.compiler.loops import names
from gossamer.compiler.loops.machine import Machine


def interpreted(plan, values):
    """The dense result of a plan's nest, as the interpreter of loops computes it."""
    arrays = {name: array.reshape(-1).tolist() for name, array in plan.arrays.items()}
    for k, value in enumerate(plan.ready(values)):
        # a strided operand as the flat memory that its strides number
        flat = (
            value
            if value.is_contiguous()
            else torch.as_strided(value, (value.untyped_storage().nbytes() // 8,), (1,), 0)
        )
        arrays[names.values(k)] = flat.reshape(-1).tolist()
    kind = plan.kernel.program.output.kind
    count = torch.Size(plan.out_shape).numel()
    if kind == "pattern":
        view = plan.views[plan.out]
        count = values[plan.out].numel() if view.index is None else view.index.numel()
    arrays |= {"out": [0.0] * count, "out.count": [0] * max(count, 1)}
    machine = Machine(arrays, plan.numbers)
    out = torch.tensor(machine.run(plan.kernel.nest)["out"], dtype=torch.float64)
    if kind == "dense":
        shape = plan.out_shape if plan.out_perm is None else tuple(plan.out_shape[d] for d in plan.out_perm)
        out = out.view(shape)
        return out if plan.out_perm is None else out.permute([plan.out_perm.index(d) for d in range(len(shape))])
    if kind == "pattern":
        return out
    return machine.entries, machine.arrays["out.count"]
