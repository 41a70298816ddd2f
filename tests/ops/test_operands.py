"""The operands of an einsum: checked, sized and prepared."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.ops.operands import check, copies, prepare, sizes_of

F64 = torch.float64


def test_operands_are_tensors_of_one_kind():
    check("i,i->", [torch.ones(2), gs.from_dense(torch.ones(2), gs.COO())])
    with pytest.raises(TypeError, match="'i,i->': operands must be tensors, not list"):
        check("i,i->", [torch.ones(2), [1.0, 2.0]])
    message = "operands must have one type and one device, not float32 on cpu, float64 on cpu"
    with pytest.raises(TypeError, match=message):
        check("i,i->", [torch.ones(2, dtype=F64), torch.ones(2)])


def sizes(text, *shapes):
    return sizes_of(text, parse(text, [len(s) for s in shapes]), [torch.ones(s) for s in shapes])


def test_sizes_by_hand():
    assert sizes("ij,jk->ik", (2, 3), (3, 4)) == {"i": 2, "j": 3, "k": 4}
    assert sizes("ij,ij->ij", (1, 3), (2, 1)) == {"i": 2, "j": 3}  # 1 goes with any size
    assert sizes("ii->i", (3, 3)) == {"i": 3}


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], "'ij,jk->ik': index 'j' has size 3, but 4 in operand 1"),
        ("ii->i", [(2, 3)], "operand 0 has index 'i' twice, with sizes 2 and 3"),
        ("...i,...i->i", [(2, 3), (4, 3)], "a dimension of '...' has size 2, but 4 in operand 1"),
    ],
)
def test_sizes_that_disagree(text, shapes, message):
    with pytest.raises(ValueError, match=message.replace("...", r"\.\.\.")):
        sizes(text, *shapes)


def test_terms_that_broadcast_are_counted_as_often_as_they_stand_for():
    statement = parse("ij->", [2])
    assert copies(statement, [torch.ones(1, 3)], {"i": 7, "j": 3}) == 7
    assert copies(statement, [torch.ones(1, 1)], {"i": 7, "j": 3}) == 21
    assert copies(statement, [torch.ones(7, 3)], {"i": 7, "j": 3}) == 1
    assert copies(parse("ij->i", [2]), [torch.ones(1, 3)], {"i": 7, "j": 3}) == 1  # i is not summed


def prepared(text, *tensors):
    statement = parse(text, [t.dim() for t in tensors])
    own = sizes_of(text, statement, tensors)
    made, ready = prepare(statement, tensors, own, F64)
    return made, ready, own


def test_a_diagonal_and_a_sum_of_one_dense_operand_are_torchs():
    x, w = torch.arange(9.0).view(3, 3), gs.from_dense(torch.eye(3), gs.CSR())
    made, ready, _ = prepared("ij,jj->ij", w, x)
    assert ready[1].vars == ("j",) and ready[1].values.tolist() == [0.0, 4.0, 8.0] and ready[1].values.dtype is F64
    made, ready, own = prepared("ij,jk->i", w, x)
    assert ready[1].vars == ("j",) and ready[1].values.tolist() == [3.0, 12.0, 21.0] and "k" not in own
    assert made.inputs == (("i", "j"), ("j",)) and made.output == ("i",)
    assert ready[0].structure is w.structure and ready[1].structure is None


def test_what_broadcasts_loses_its_dimension_or_has_an_index_of_its_own():
    w = gs.from_dense(torch.eye(3), gs.CSR())
    _, ready, _ = prepared("ij,ij->ij", w, torch.tensor([[2.0, 3.0, 4.0]]))
    assert ready[1].vars == ("j",) and ready[1].values.tolist() == [2.0, 3.0, 4.0]
    row = gs.from_dense(torch.tensor([[0.0, 5.0, 0.0]]), gs.CSR())
    made, ready, own = prepared("ij,ij->ij", w, row)
    assert ready[1].vars[1] == "j" and ready[1].vars[0].startswith("i.") and own[ready[1].vars[0]] == 1
    assert made.inputs[1] == ready[1].vars


def test_where_terms_are_added_no_operand_is_summed_alone():
    w, x = gs.from_dense(torch.eye(3), gs.CSR()), torch.ones(3, 4)
    made, ready, own = prepared("ij + jk -> i", w, x)
    assert ready[1].vars == ("j", "k") and own == {"i": 3, "j": 3, "k": 4} and made.inputs == (("i", "j"), ("j", "k"))
