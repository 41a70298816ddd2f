"""Walks over several levels at once: run by the interpreter, next to sets."""

from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.loops.machine import Machine
from gossamer.compiler.loops.merge import Iterator, merge
from gossamer.compiler.loops.nest import ZERO, Append, Load, Nest, Num, Var

SIZE = 9


def iterator(k, entries):
    return Iterator(k, 0, ZERO, Num(entries), Var(f"{'ABC'[k]}0.q"), lambda at: Load(f"crd{k}", at), None)


def visited(levels, points):
    """Coordinates in the order in which they are visited, each with the operands that are said to be there."""
    its = [iterator(k, len(crd)) for k, crd in enumerate(levels)]

    def inside(present):
        return [Append(Var("i"), Num(sum(1 << k for k in present)))]

    body = merge("i", its, {frozenset(p) for p in points}, inside, Num(SIZE))
    machine = Machine({f"crd{k}": crd for k, crd in enumerate(levels)}, {})
    machine.run(Nest("", (), (), body, "double"))
    return machine.entries


def test_by_hand():
    a, b = [1, 4, 6], [0, 4, 6, 8]
    assert visited([a, b], [{0, 1}]) == [(4, 3), (6, 3)]
    assert visited([a, b], [{0, 1}, {0}, {1}]) == [(0, 2), (1, 1), (4, 3), (6, 3), (8, 2)]
    assert visited([a, b], [{0, 1}, {0}]) == [(1, 1), (4, 3), (6, 3)]
    assert [i for i, _ in visited([a, b], [{0, 1}, {0}, {1}, ()])] == list(range(SIZE))
    assert visited([[], []], [{0, 1}, {0}, {1}]) == []


def test_padding_ends_a_walk():
    padded = Iterator(0, 0, ZERO, Num(3), Var("A0.q"), lambda at: Load("crd0", at), lambda at: Load("real", at))
    body = merge("i", [padded], {frozenset({0})}, lambda present: [Append(Var("i"), Num(1.0))], Num(SIZE))
    machine = Machine({"crd0": [2, 5, 0], "real": [1, 1, 0]}, {})
    machine.run(Nest("", (), (), body, "double"))
    assert [i for i, _ in machine.entries] == [2, 5]


LEVEL = st.lists(st.integers(0, SIZE - 1), unique=True).map(sorted)
POINTS = st.sets(st.frozensets(st.integers(0, 2)), min_size=1)


@given(LEVEL, LEVEL, LEVEL, POINTS)
def test_each_coordinate_is_visited_once_with_the_largest_set_that_is_there(a, b, c, points):
    points |= {x | y for x in points for y in points}  # as algebra.needed gives them
    points |= {x | y for x in points for y in points}
    want = []
    for i in range(SIZE):
        here = frozenset(k for k, level in enumerate((a, b, c)) if i in level)
        if fitting := [p for p in points if p <= here]:
            want.append((i, sum(1 << k for k in max(fitting, key=len))))
    assert visited([a, b, c], points) == want
