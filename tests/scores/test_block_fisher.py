import pytest
import torch

from gossamer.scores import BlockFisher


def gathered(grads, block, damp=0.1):
    fisher = BlockFisher(*grads.shape[1:], count=len(grads), block=block, damp=damp)
    for grad in grads:
        fisher.add(grad)
    return fisher


@pytest.mark.parametrize(
    ("rows", "columns", "block", "batches"), [(3, 8, 4, 5), (2, 10, 4, 40), (1, 3, 8, 17), (5, 16, 16, 1)]
)
def test_rank_one_updates_give_the_inverse(rows, columns, block, batches):
    grads = torch.randn(batches, rows, columns, dtype=torch.float64)
    inverse = gathered(grads, block).inverse()
    damp = 0.1 * float(torch.nn.functional.pad(grads[:16], (0, -columns % block)).square().mean())
    for row in range(rows):
        for at in range(0, columns, block):
            g = grads[:, row, at : at + block]
            f = g.T @ g / batches + damp * torch.eye(g.shape[1], dtype=torch.float64)
            got = inverse[row, at // block, : g.shape[1], : g.shape[1]]
            torch.testing.assert_close(got, torch.linalg.inv(f), rtol=1e-8, atol=1e-8)


def test_rows_and_the_diagonal():
    fisher = gathered(torch.randn(20, 300, 30, dtype=torch.float64), 8, damp=0.5)  # more rows than one slice holds
    torch.testing.assert_close(fisher.inverse(slice(2, 290)), fisher.inverse()[2:290])
    diagonal = fisher.inverse().diagonal(dim1=2, dim2=3).flatten(1)[:, :30]
    assert torch.equal(fisher.diagonal(), diagonal)


def test_damping_as_it_is():
    fisher = BlockFisher(1, 2, count=1, block=2, damp=0.5, relative=False)
    fisher.add(torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(fisher.inverse()[0, 0], torch.tensor([[1 / 4.5, 0.0], [0.0, 2.0]], dtype=torch.float64))


def test_no_gradient_and_no_damping():
    empty = gathered(torch.zeros(3, 2, 8), 8)
    assert empty.inverse().isfinite().all() and empty.empty
    with pytest.raises(ValueError, match="damp"):
        BlockFisher(2, 8, count=1, block=8, damp=0.0)
