"""Steps of a product mean what the product means."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.notation import parse
from gossamer.compiler.planner.facts import Facts
from gossamer.compiler.planner.pairs import plan, product_of


def facts_of(statement, tensors, sparse):
    return [
        Facts(g, tuple(t.shape), t.numel() / 10 if s else float(t.numel()), s)
        for g, t, s in zip(statement.inputs, tensors, sparse, strict=True)
    ]


def test_functions_numbers_and_signs_stay_with_their_factors():
    statement = parse("-2 * relu(ij) * jk * kl -> il", (2, 2, 2))
    a, b, c = torch.randn(60, 70).double(), torch.randn(70, 80).double(), torch.randn(80, 20).double()
    found = plan(statement, facts_of(statement, (a, b, c), (False, True, False)))
    results = [a, b, c]
    for step in found.steps:
        results.append(interpret(step.statement, [results[n] for n in step.operands]))
    assert torch.allclose(results[-1], -2 * a.relu() @ b @ c)


def test_what_is_no_product_of_single_operands_is_left_alone():
    assert product_of(parse("(ij + ij) * jk * kl -> il", (2, 2, 2, 2))) is None
    assert product_of(parse("max: ij,jk,kl -> il", (2, 2, 2))) is None
    assert product_of(parse("0 * ij,jk -> ik", (2, 2))) is None


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_steps_compute_the_product(data):
    letters = "abcd"
    sizes = {v: data.draw(st.integers(1, 5)) for v in letters}
    count = data.draw(st.integers(2, 5))
    groups = ["".join(data.draw(st.permutations(letters))[: data.draw(st.integers(1, 3))]) for _ in range(count)]
    used = sorted({v for g in groups for v in g})
    output = "".join(v for v in used if data.draw(st.booleans()))
    statement = parse(f"{','.join(groups)}->{output}", [len(g) for g in groups])
    tensors = [torch.randn([sizes[v] for v in g], dtype=torch.float64) for g in groups]
    # sizes as if they were large, so that pairs pay
    facts = [
        Facts(g, tuple(100 * sizes[v] for v in g), 10.0 * 100 ** (len(g) - 1), data.draw(st.booleans()))
        for g in statement.inputs
    ]
    facts = [f if f.sparse else Facts(f.names, f.sizes, f.places, False) for f in facts]
    found = plan(statement, facts)
    if found is None:
        return
    results = list(tensors)
    for step in found.steps:
        results.append(interpret(step.statement, [results[n] for n in step.operands]))
    assert torch.allclose(results[-1], torch.einsum(f"{','.join(groups)}->{output}", *tensors))
