import pytest
import torch

from gossamer.prune.gram import Gram


def test_gram_streams():
    x = torch.randn(2, 30, 5, dtype=torch.float64)
    gram = Gram()
    for part in x.split(7, dim=1):
        gram.add(part)
    assert gram.tokens == 30
    torch.testing.assert_close(gram.total, x.mT @ x)
    torch.testing.assert_close(gram.norms, x.norm(dim=1))
    change = torch.randn(2, 3, 5, dtype=torch.float64)
    assert gram.error(change.view(6, 5)) == pytest.approx(float((change @ x.mT).square().sum()))


def test_gram_sees_nan_and_infinity():
    for bad in (float("nan"), float("inf")):
        gram = Gram()
        gram.add(torch.tensor([[[1.0, 2.0], [bad, 0.0]]]))
        assert not gram.finite


def test_half_precision_is_summed_in_float32():
    gram = Gram()
    gram.add(torch.full((1, 4096, 1), 16.0, dtype=torch.float16))
    assert gram.total.dtype == torch.float32 and float(gram.total) == 4096 * 256  # far above float16's largest


def test_by_hand():
    gram = Gram(torch.tensor([[[10.0, 2.0], [2.0, 4.0]]]))
    assert gram.error(torch.tensor([[1.0, -1.0], [0.0, 2.0]])) == (10 - 4 + 4) + 16  # d^T H d of each row, added up


@pytest.mark.parametrize("columns", [6, 8, 11])
def test_blocks_on_the_diagonal_where_it_would_be_too_large(columns):
    x = torch.randn(2, 30, columns)
    full, cut = Gram(), Gram(limit=2 * 4 * columns * 4, align=2)  # room for blocks of 4 columns
    full.add(x)
    cut.add(x)
    slices = [part for part, _ in cut.blocks()]
    assert [part.start for part in slices] == list(range(0, columns, 4)) and slices[-1].stop == columns
    for part, block in cut.blocks():
        torch.testing.assert_close(block, full.total[:, part, part])
    torch.testing.assert_close(cut.norms, full.norms)
    assert full.note is None and "diagonal blocks of 4 columns" in cut.note
    change = torch.zeros(6, columns)
    change[:, 1] = 1.0  # in one block alone
    assert cut.error(change) == pytest.approx(full.error(change), rel=1e-5)
    both = cut.copy()
    both.merge(cut)
    assert both.tokens == 60 and torch.equal(both.parts[0], 2 * cut.parts[0])


def test_how_far_inputs_have_moved():
    x, dense = torch.randn(2, 2, 7, 3, dtype=torch.float64)
    gram, rest = Gram(), Gram()
    gram.add(x, dense)
    rest.add(x)  # without those of the dense model: as if they had not moved
    expected = (dense - x).mT @ x
    torch.testing.assert_close(gram.moved[0], expected)
    both = rest.copy()
    both.merge(gram)
    both.merge(rest)
    torch.testing.assert_close(both.moved[0], expected)
    torch.testing.assert_close(both.total, 3 * gram.total)
    copy = gram.copy()
    copy.add(x, dense)
    torch.testing.assert_close(gram.moved[0], expected)
    torch.testing.assert_close(copy.moved[0], 2 * expected)
    assert not rest.moved


def test_moved_inputs_in_diagonal_blocks():
    x, dense = torch.randn(2, 1, 9, 8)
    full, cut = Gram(), Gram(limit=8 * 4 * 4, align=2)
    full.add(x, dense)
    cut.add(x, dense)
    for (columns, _), moved in zip(cut.blocks(), cut.moved, strict=True):
        torch.testing.assert_close(moved, full.moved[0][:, columns, columns])
