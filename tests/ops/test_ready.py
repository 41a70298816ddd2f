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


def test_calls_that_autograd_follows():
    """A repeated call has the same gradients, also if other operands are followed, and gradients of gradients."""
    a = gs.sparsify(torch.randn(20, 30).double(), "80%", format=gs.CSR())
    x = torch.randn(30, 8, dtype=torch.float64)
    assert key_of("ij,jk->ik", (a, x), None)[-1] is None
    for turn in range(3):
        for follow_a, follow_x in ((True, True), (False, True), (True, False)):
            w = torch.nn.Parameter(a.detach().clone(), requires_grad=follow_a)
            y = x.detach().clone().requires_grad_(follow_x)
            out = gs.einsum("ij,jk->ik", w, y)
            assert out.requires_grad and torch.equal(out.detach(), gs.einsum("ij,jk->ik", a, x))
            leaves = [t for t, follow in ((w, follow_a), (y, follow_x)) if follow]
            grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=turn == 1)
            exact = 2 * (a.to_dense() @ x)
            wanted = [
                g
                for g, follow in (((exact @ x.t()) * a.mask(), follow_a), (a.to_dense().t() @ exact, follow_x))
                if follow
            ]
            for mine, other in zip(grads, wanted, strict=True):
                torch.testing.assert_close(mine.to_dense() if mine.__class__ is gs.SparseTensor else mine, other)
            if turn == 1 and follow_x:
                (second,) = torch.autograd.grad(grads[-1].sum(), y)
                again = 2 * a.to_dense().t() @ (a.to_dense() @ torch.ones_like(x))
                torch.testing.assert_close(second, again)


def test_followed_products_with_patterns_of_their_own():
    """The structure of a result may be another object in each call."""
    for _ in range(4):
        for seed in range(3):
            torch.manual_seed(seed)
            a, b = (gs.sparsify(torch.randn(12, 12).double(), "70%", format=gs.CSR()) for _ in range(2))
            w, v = torch.nn.Parameter(a), torch.nn.Parameter(b)
            for _ in range(2):
                out = gs.einsum("ij + ij -> ij", w, v)
                grads = torch.autograd.grad(out.to_dense().square().sum(), (w, v))
                for t, g in ((a, grads[0]), (b, grads[1])):
                    expected = 2 * (a.to_dense() + b.to_dense()) * t.mask()
                    torch.testing.assert_close(g.to_dense(), expected)


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
