"""Names in nests: none of ours is an index, and no two are the same."""

from gossamer.compiler.loops import names


def test_by_hand():
    assert names.size("row") == "row.size" and names.values(2) == "C.val"
    assert names.array(0, "crd", 1) == "A.crd1" and names.stride("out", 2) == "out.s2"
    assert names.local(1, 0, "end") == "B0.end"


def test_every_name_has_a_dot_or_is_an_array():
    variables = [names.ACC, names.SEEN, names.COUNT, names.FIRST, names.DRAINED, names.TOTAL]
    made = [names.size("i"), names.values(0), names.array(0, "pos", 0), names.stride("A", 0), names.local(0, 0, "q")]
    assert all("." in name for name in (*variables, *made))


def test_names_of_many_operands_and_levels_differ():
    every = [names.local(k, level, "q") for k in range(60) for level in range(12)]
    every += [names.array(k, a, level) for k in range(60) for a in ("pos", "crd") for level in range(12)]
    every += [names.values(k) for k in range(60)]
    assert len(set(every)) == len(every)
