"""What is kept of a call, and for which calls it is used again."""

import torch

import gossamer as gs
from gossamer.ops.ready import Ready, key_of, known


def test_a_key_says_all_that_a_plan_depends_on():
    a, x = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4, 2)
    base = key_of("ij,jk->ik", (a, x), None)
    assert base == key_of("ij,jk->ik", (a * 2, torch.randn(4, 2)), None)
    others = [
        key_of("ij,jk->ki", (a, x), None), key_of("ij,jk->ik", (a, x.double()), None),
        key_of("ij,jk->ik", (a, torch.randn(2, 4).t()), None), key_of("ij,jk->ik", (a, x), gs.CSR()),
    ]  # fmt: skip
    assert all(base != other for other in others)


def test_gradients_are_not_kept():
    a, x = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4, 2, requires_grad=True)
    assert key_of("ij,jk->ik", (a, x), None) == ()
    with torch.no_grad():
        assert key_of("ij,jk->ik", (a, x), None) != ()


def test_a_call_is_known_after_the_first():
    a, x = gs.from_dense(torch.eye(9), gs.CSR()), torch.randn(9, 2)
    assert known("ij,jk->ik", (a, x), None) is None
    with gs.dense_from(None):
        gs.einsum("ij,jk->ik", a, x)
        found = known("ij,jk->ik", (a, x), None)
        assert isinstance(found, Ready) and torch.equal(found((a, x)), x) and found.nbytes() >= 0


def test_a_call_on_a_new_pattern_is_planned_by_what_was_decided_before():
    x = torch.randn(40, 3)
    for seed in range(3):
        torch.manual_seed(seed)
        dense = torch.randn(30, 40) * (torch.rand(30, 40) < 0.1)
        a = gs.from_dense(dense, gs.CSR())
        found = known("ab,bc->ac", (a, x), None)
        assert isinstance(found, Ready) if seed else found is None
        assert torch.allclose(gs.einsum("ab,bc->ac", a, x), dense @ x, atol=1e-5)


def test_equal_patterns_are_no_recipe_for_others():
    torch.manual_seed(0)
    a, b = (gs.from_dense(torch.randn(20, 30) * (torch.rand(20, 30) < 0.2), gs.CSR()) for _ in range(2))
    assert gs.einsum("pq,pq->pq", a, b).structure is not a.structure
    assert gs.einsum("pq,pq->pq", a, a).structure is a.structure
    assert torch.allclose(gs.einsum("pq,pq->pq", b, a).to_dense(), a.to_dense() * b.to_dense())


def test_sums_of_new_patterns_with_many_places_are_known():
    """Rows decide if the format depends on the number of entries, not all places of a result."""
    for seed in range(3):
        keys = torch.randint(9_000_000, (50, 2), generator=torch.Generator().manual_seed(seed))
        a, b = (_matrix(column, (3000, 3000)) for column in keys.t())
        assert (known("fg + fg -> fg", (a, b), None) is None) == (seed == 0)
        got = gs.einsum("fg + fg -> fg", a, b)
        assert got.format == gs.CSR() and torch.equal(got.to_dense(), a.to_dense() + b.to_dense())


def test_the_format_of_a_result_does_not_depend_on_calls_before():
    shape, formats = (3_000_000, 4), []
    for entries in (10, 200_000, 10):
        a, b = (_matrix(torch.arange(entries) * 50 + k, shape) for k in (0, 1))
        formats.append(gs.einsum("uv + uv -> uv", a, b).format)
    assert formats == [gs.DCSR(), gs.CSR(), gs.DCSR()]


def _matrix(keys, shape):
    structure, _ = gs.formats.Structure.from_keys(gs.CSR(), keys.unique(), shape)
    return gs.SparseTensor(torch.ones(structure.value_shape), structure)
