"""Names in C: the same for all letters, and none that C or the prelude has."""

from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.emit.names import Names


def test_by_hand():
    names = Names(["row", "col"])
    assert (names("row"), names("col"), names("col.size"), names("A.s0"), names("out.acc")) == (
        "i", "j", "j_size", "A_s0", "out_acc",
    )  # fmt: skip


def test_an_index_called_as_the_result_is_not_its_array():
    names = Names(["out"])
    assert names("out") == "i" and names.array("out") == "out" and names("out.size") == "i_size"


@given(st.lists(st.text("abcijkout_", min_size=1), unique=True, max_size=12))
def test_names_depend_on_the_order_of_indices_alone(indices):
    names, plain = Names(indices), Names([f"n{k}" for k in range(len(indices))])
    found = [names(v) for v in indices]
    assert found == [plain(f"n{k}") for k in range(len(indices))]
    assert len(set(found)) == len(found) and found[5:] == [f"i{k}" for k in range(5, len(found))]


def test_an_index_that_is_named_twice_has_one_name():
    assert Names(["a", "b", "a"])("b") == "j"
