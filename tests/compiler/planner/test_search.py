"""The order of products: what a person would choose, and never worse than all at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.compiler.planner.facts import Facts
from gossamer.compiler.planner.search import search


def facts(text, sizes, entries=None):
    shape = tuple(sizes[v] for v in text)
    places = 1.0
    for size in shape:
        places *= size
    return Facts(tuple(text), shape, places if entries is None else float(entries), entries is not None)


def chosen(groups, output, sizes, entries, **options):
    return str(
        search(tuple(facts(g, sizes, entries.get(n)) for n, g in enumerate(groups)), tuple(output), **options).way
    )


def test_a_chain_is_multiplied_from_its_narrow_end():
    sizes = dict(zip("ijkl", (5000, 5000, 5000, 16), strict=True))
    assert chosen(["ij", "jk", "kl"], "il", sizes, {0: 50_000, 1: 50_000}) == "A (B C)"
    sizes["i"] = 3
    assert chosen(["ij", "jk", "kl"], "il", sizes, {1: 50_000}) == "(A B) C"


@pytest.mark.parametrize(("wide", "order"), [(8, "A (B C)"), (1024, "(A B) C")])
def test_the_smaller_side_of_a_layer_meets_the_graph(wide, order):
    sizes = {"n": 10_000, "m": 10_000, "k": 64, "o": wide}
    assert chosen(["nm", "mk", "ko"], "no", sizes, {0: 100_000}) == order


def test_sampled_products_are_one_kernel():
    sizes = {"i": 5000, "j": 5000, "d": 64}
    assert chosen(["ij", "id", "jd"], "ij", sizes, {0: 250_000}, like=0) == "A B C"


def test_what_stands_before_a_sampled_product_is_a_step_of_its_own():
    sizes = {"i": 5000, "j": 5000, "d": 64, "e": 64}
    assert chosen(["ij", "id", "de", "je"], "ij", sizes, {0: 250_000}, like=0) == "A (B C) D"


def test_an_index_that_one_factor_has_is_summed_first():
    sizes = {"i": 1000, "j": 1000, "k": 1000}
    assert chosen(["ij", "jk"], "k", sizes, {0: 10_000}) == "sum(A) B"


def test_temporaries_are_sparse_where_few_entries_meet():
    sizes = {"i": 100_000, "j": 100_000, "k": 100_000, "l": 100_000}
    found = search(tuple(facts(g, sizes, 1000) for g in ("ij", "jk", "kl")), ("i", "l"), sparse=True)
    assert all(kernel.facts.sparse for kernel in found.way.kernels())


def test_no_temporary_is_far_larger_than_the_operands():
    sizes = {"i": 100_000, "j": 100_000, "k": 4}
    way = search((facts("ij", sizes, 1000), facts("ik", sizes), facts("jk", sizes)), ("i", "j"), like=0).way
    assert str(way) == "A B C"


def test_many_factors_are_cut_in_two():
    sizes = dict.fromkeys("abcdefghi", 200)
    groups = ["ab", "bc", "cd", "de", "ef", "fg", "gh", "hi"]
    way = search(tuple(facts(g, sizes, 400 if n % 2 else None) for n, g in enumerate(groups)), ("a", "i")).way
    assert len(way.kernels()) == 7


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_way_is_no_worse_than_one_kernel_and_has_each_factor_once(data):
    letters = "abcd"
    sizes = {v: data.draw(st.integers(1, 500)) for v in letters}
    groups = [
        data.draw(st.permutations(letters))[: data.draw(st.integers(1, 3))] for _ in range(data.draw(st.integers(2, 4)))
    ]
    entries = {n: data.draw(st.integers(0, 1000)) for n in range(len(groups)) if data.draw(st.booleans())}
    own = tuple(facts(g, sizes, entries.get(n)) for n, g in enumerate(groups))
    output = tuple(v for v in letters if any(v in g for g in groups) and data.draw(st.booleans()))
    found = search(own, output)
    ways = [found.way, *found.lost]
    assert [w.total.time for w in ways] == sorted(w.total.time for w in ways)
    leaves = [part.factor for kernel in found.way.kernels() for part in kernel.parts if not part.parts]
    assert sorted(leaves) == list(range(len(groups)))
    assert found.way.facts.names == output
