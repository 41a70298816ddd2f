"""Malformed data: ten thousand corruptions of every format, each refused with its broken promise, none accepted.

The judge is ``tests/formats/_reference.py``, a slow reader in plain Python: what it calls broken must raise ValueError
or TypeError and name the format; what it can read must be accepted, with the same entries.
"""

from __future__ import annotations

import collections
import functools
import io
import random
import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import gossamer as gs
from benchmarks import malformed
from gossamer.core import join
from gossamer.core import tensor as tensors
from tests.formats import _corrupt, _generate, _reference
from tests.formats._corrupt import KINDS, Case, whole
from tests.formats._reference import SPECS

PER_KIND = 18  # corruptions of each kind for each format
AT_LEAST = 10_000
PROMISES = re.compile("pos|crd|mask|values|shape|arrays|entries|index|position")


def verdict(case: Case) -> tuple[str, Any]:
    """Ask the judge: ("broken", promise), ("whole", entries) or ("unknown", None)."""
    try:
        return "whole", _reference.read(case.spec, case.shape, case.values, case.arrays)
    except _reference.Broken as broken:
        return "broken", str(broken)
    except _reference.TooBig:
        return "unknown", None


def same_entries(tensor: gs.SparseTensor, entries: dict[tuple[int, ...], float], spec: _reference.Spec) -> bool:
    sizes = spec.sizes(tuple(tensor.shape))
    want = {}
    for coord, value in entries.items():
        number = 0
        for c, size in zip(coord, sizes, strict=True):
            number = number * size + c
        want[number] = value
    keys, values = join.entries_of(tensor)
    return keys.numel() == tensor.nnz and str(dict(zip(keys.tolist(), values.tolist(), strict=True))) == str(want)


def corruptions(rng: random.Random, format: str, kind: str, wanted: int) -> Any:
    """Yield corruptions of one kind with the judge's verdict, until so many are really broken."""
    broken = 0
    for _ in range(12 * wanted):
        case = KINDS[kind](rng, whole(rng, format))
        if case is None:
            continue
        word, why = verdict(case)
        broken += word == "broken"
        yield case, word, why
        if broken == wanted:
            return


def refused(build: Any, names: str) -> str:
    """Return "" if it is refused as it should be, else what happened instead."""
    try:
        build()
    except (ValueError, TypeError) as error:
        message = str(error)
        return "" if names in message and PROMISES.search(message) else f"a message without its promise: {message}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def show(title: str, counts: collections.Counter[Any]) -> None:
    print(f"\n{title}: {sum(counts.values()):,}")
    for name, count in counts.items():
        print(f"  {name:24} {count:6,}")


@functools.cache
def survey() -> dict[str, Any]:
    """All corruptions through ``from_arrays``: counts, and what went wrong."""
    rng = random.Random(2)
    torch.manual_seed(2)
    by_format, by_kind = collections.Counter(), collections.Counter()
    wrong, whole_ones = [], 0
    for format in SPECS:
        for kind in KINDS:
            for case, word, why in corruptions(rng, format, kind, PER_KIND):
                if word == "broken":
                    by_format[format] += 1
                    by_kind[kind] += 1
                    fault = refused(case.build, repr(case.spec.format))
                    if fault:
                        wrong.append(f"{format}, {kind} ({why}): {fault}")
                elif word == "whole":
                    whole_ones += 1
                    if not same_entries(case.build(), why, case.spec):
                        wrong.append(f"{format}, {kind}: read differently")
    return {"format": by_format, "kind": by_kind, "wrong": wrong, "whole": whole_ones}


@pytest.mark.timeout(900)  # 30 seconds alone; other work beside must not end it
def test_every_corruption_is_refused() -> None:
    found = survey()
    show("corruptions by format", found["format"])
    show("corruptions by kind", found["kind"])
    print(f"mutations that left the tensor whole, and were accepted: {found['whole']:,}")
    assert not found["wrong"], f"{len(found['wrong'])} wrong, such as\n" + "\n".join(found["wrong"][:20])
    assert sum(found["format"].values()) >= AT_LEAST
    assert set(found["format"]) == set(SPECS) and set(found["kind"]) == set(KINDS)
    assert min(found["format"].values()) > 100


@pytest.mark.parametrize("format", SPECS)
def test_whole_tensors_are_accepted(format: str) -> None:
    rng = random.Random(3)
    for _ in range(60):
        case = whole(rng, format)
        word, entries = verdict(case)
        assert word == "whole", entries
        assert same_entries(case.build(), entries, case.spec)


# -- the same through files


class Tampered:
    """Saves as a SparseTensor would, with arguments of our choice."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return tensors.rebuild, self.args


def loaded(*args: Any) -> Any:
    file = io.BytesIO()
    torch.save(Tampered(*args), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_tampered_files_are_refused() -> None:
    rng = random.Random(4)
    counts, wrong = collections.Counter(), []
    kinds = [k for k in KINDS if k not in ("not a tensor", "shape of other things", "other names", "other device")]
    for format in SPECS:
        for kind in kinds:
            for case, word, _ in corruptions(rng, format, kind, 3):
                if word == "broken":
                    args = (repr(case.spec.format), case.shape, case.values, case.arrays, False, False, "None")
                    counts[format] += 1
                    fault = refused(functools.partial(loaded, *args), repr(case.spec.format))
                    if fault and "Unsupported operand" not in fault:  # torch reads no integer of thousands of digits
                        wrong.append(f"{format}, {kind}: {fault}")
    show("tampered files", counts)
    assert not wrong, "\n".join(wrong[:20])
    assert sum(counts.values()) > 1000


@pytest.mark.parametrize(
    "format",
    ["", "CSR(", "CSR", "Nothing()", "BSR((0, 0))", "BSR(4)", "BSR((2**40, 2))", "ELL(-1)", "Format()", "Dense()",
     "Format('dense', order=(1,))", "Format(1)", "Format([])", "__import__('os')", "CSR().order", "ELL('wide')",
     "Format('dense', Fixed(width=-1))", "Format('dense', Level())", "Format('dense', Fixed(__import__('os')))",
     "Format('dense', 'compressed', order=(1.0, 0.0))", "CSR(**{})", "lambda: 1", "(" * 500,
     "\0", 5, None, ["CSR()"], b"CSR()"],
)  # fmt: skip
def test_format_of_a_tampered_file(format: Any) -> None:
    arrays = {"pos1": torch.tensor([0, 1, 1]), "crd1": torch.tensor([1])}
    rest = ((2, 2), torch.ones(1), arrays, False, False)
    if format == "CSR":  # a name without arguments is fine
        assert loaded(format, *rest).format == gs.CSR()
        return
    with pytest.raises((ValueError, TypeError)):
        loaded(format, *rest)


@pytest.mark.parametrize(
    "rest", [("yes", False), (True, 3), (True, True, "Nothing()"), (None, False), (False, False, 7)]
)
def test_flags_of_a_tampered_file(rest: tuple[Any, ...]) -> None:
    arrays = {"pos1": torch.tensor([0, 1, 1]), "crd1": torch.tensor([1])}
    with pytest.raises((ValueError, TypeError)):
        loaded("CSR()", (2, 2), torch.ones(1), arrays, *rest)


def test_integers_that_require_a_gradient() -> None:
    arrays = {"pos1": torch.tensor([0, 1, 1]), "crd1": torch.tensor([1])}
    for parameter in (True, False):
        with pytest.raises(ValueError, match="gradient"):
            loaded("CSR()", (2, 2), torch.ones(1, dtype=torch.int64), arrays, True, parameter)


def test_a_file_can_not_write_attributes_past_the_checks() -> None:
    class Built(Tampered):
        def __reduce__(self) -> Any:
            return tensors.rebuild, self.args, {"_values": torch.ones(0)}

    file = io.BytesIO()
    arrays = {"pos1": torch.tensor([0, 1, 1]), "crd1": torch.tensor([1])}
    torch.save(Built("CSR()", (2, 2), torch.ones(1), arrays, False, False), file)
    file.seek(0)
    with pytest.raises(Exception, match=r"weights_only|BUILD|Can only build"):
        torch.load(file, weights_only=True)


def test_honest_files_are_read() -> None:
    rng = random.Random(5)
    for format in SPECS:
        for _ in range(5):
            tensor = whole(rng, format).build()
            file = io.BytesIO()
            torch.save(tensor, file)
            file.seek(0)
            back = torch.load(file, weights_only=True)
            assert back.format == tensor.format and torch.equal(back.to_dense(), tensor.to_dense())


def test_expanded_values_are_saved_whole() -> None:
    tensor = gs.from_dense(torch.eye(3), gs.CSR())
    spread = gs.SparseTensor(torch.ones(1).expand(3), tensor.structure)
    file = io.BytesIO()
    torch.save(spread, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True).to_dense(), torch.eye(3))


# -- the same through torch.sparse and scipy

COMPRESSED = {"CSR": torch.sparse_csr, "CSC": torch.sparse_csc, "BSR 2x2": torch.sparse_bsr}


def as_torch(case: Case) -> torch.Tensor | None:
    """Return the corrupt torch.sparse tensor, or None where torch itself refuses to make it."""
    try:
        if len(case.shape) != 2:
            return None
        if case.spec.format == gs.COO():
            crds = [a for k, a in sorted(case.arrays.items()) if k.startswith("crd")]
            return torch.sparse_coo_tensor(torch.stack(crds), case.values, case.shape, check_invariants=False)
        layout = next(COMPRESSED[name] for name in COMPRESSED if SPECS[name] is case.spec)
        return torch.sparse_compressed_tensor(
            case.arrays["pos1"], case.arrays["crd1"], case.values, case.shape, layout=layout, check_invariants=False
        )
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, UserWarning):
        return None


def test_malformed_torch_sparse_is_refused() -> None:
    rng, counts, wrong = random.Random(6), collections.Counter(), []
    for format in (*COMPRESSED, "COO"):
        for kind in [k for k in KINDS if k not in ("not a tensor", "other names")]:
            for case, word, why in corruptions(rng, format, kind, 25):
                broken = as_torch(case) if word == "broken" else None
                if broken is None or (format == "COO" and "out of range" not in why):
                    continue  # COO in torch may be unsorted, and has no pointers
                counts[format] += 1
                fault = refused(functools.partial(gs.from_torch, broken), "")
                if fault:
                    wrong.append(f"{format}, {kind} ({why}): {fault}")
    show("malformed torch.sparse tensors", counts)
    assert not wrong, "\n".join(wrong[:20])
    assert sum(counts.values()) > 500 and len(counts) == 4


def as_scipy(case: Case) -> Any:
    """Return a scipy matrix whose arrays were exchanged behind its back."""
    maker = {"CSR": scipy.sparse.csr_array, "CSC": scipy.sparse.csc_array, "BSR 2x2": scipy.sparse.bsr_array}
    name = next(name for name in COMPRESSED if SPECS[name] is case.spec)
    matrix = maker[name](np.zeros((4, 4)))
    if not isinstance(case.arrays, dict) or not isinstance(case.values, torch.Tensor):
        return None
    try:
        if len(case.shape) != 2:
            return None
        matrix.indptr, matrix.indices = case.arrays["pos1"].numpy(), case.arrays["crd1"].numpy()
        matrix.data = case.values.numpy()
        matrix._shape = case.shape
    except (RuntimeError, TypeError, AttributeError, KeyError):
        return None
    return matrix


def fine_for_scipy(case: Case, why: str) -> bool:
    """What scipy allows and we put in order: unsorted and repeated indices, two index types, space left at the end."""
    if "ascending" in why or "mixed" in why:
        return True
    pos, crd = case.arrays.get("pos1"), case.arrays.get("crd1")
    if "ends wrong" in why and pos.numel() and crd.dim() == 1:
        return int(pos[0]) == 0 and 0 <= int(pos[-1]) < crd.numel()
    return "values are" in why and case.spec.block is not None and case.values.dim() == 3  # another size of block


def test_malformed_scipy_is_refused() -> None:
    rng, counts, wrong = random.Random(7), collections.Counter(), []
    for format in COMPRESSED:
        for kind in [k for k in KINDS if k not in ("expanded", "not a tensor", "other names")]:
            for case, word, why in corruptions(rng, format, kind, 25):
                matrix = as_scipy(case) if word == "broken" else None
                if matrix is None or fine_for_scipy(case, why):
                    continue
                counts[format] += 1
                fault = refused(functools.partial(gs.from_scipy, matrix), "")
                if fault:
                    wrong.append(f"{format}, {kind} ({why}): {fault}")
    show("malformed scipy matrices", counts)
    assert not wrong, "\n".join(wrong[:20])
    assert sum(counts.values()) > 500 and len(counts) == 3


@pytest.mark.parametrize("format", ["csr", "csc"])
def test_scipy_pointers_beyond_the_arrays(format: str) -> None:
    matrix = scipy.sparse.eye_array(4, format=format)
    matrix.indptr = np.array([0, 1, 2, 3, 10**6], dtype=matrix.indptr.dtype)
    with pytest.raises(ValueError, match="crd has 4 entries, must have 1000000"):
        gs.from_scipy(matrix)


def test_scipy_coordinates_outside() -> None:
    matrix = scipy.sparse.coo_array(np.eye(3))
    matrix.coords = (np.array([0, 1, 9]), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match=r"outside 0 \.\. 2"):
        gs.from_scipy(matrix)
    matrix.coords = (np.array([0, 1]), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="indices in dimension 0 for"):
        gs.from_scipy(matrix)
    matrix.coords = (np.array([0.5, 1, 2]), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="must be int32 or int64"):
        gs.from_scipy(matrix)


def test_kinds_are_many() -> None:
    assert len(_corrupt.KINDS) >= 25 and len(SPECS) >= 20


# -- the same, drawn from what formats say of themselves, through every entry


def test_every_exported_format_is_drawn() -> None:
    exported = {getattr(gs.formats, name) for name in gs.formats.__all__} - {gs.Dense, gs.formats.PackedRows}
    kinds = {f for f in exported if isinstance(f, type) and issubclass(f, gs.Format)}
    assert kinds <= {type(format) for format in _generate.FORMATS}


@pytest.mark.timeout(900)  # 30 seconds alone; other work beside must not end it
def test_what_is_drawn_is_refused_or_sound() -> None:
    found = malformed.run(1000, seed=10**6)  # in processes of their own: a crash is counted
    assert not found["wrong"], "\n".join(found["wrong"][:10])
    assert all(row["refused"] for row in found["entries"].values())
    assert all(row["refused"] for row in found["formats"].values())


def test_values_that_torch_cannot_compute_with() -> None:
    arrays = {"pos1": torch.tensor([0, 1, 1]), "crd1": torch.tensor([1])}
    with pytest.raises(TypeError, match="uint32"):
        gs.SparseTensor.from_arrays(gs.CSR(), (2, 2), torch.ones(1).to(torch.uint32), arrays)


def test_index_arrays_of_a_file_have_memory_of_their_own() -> None:
    shared = torch.tensor([0, 1])  # values that are the columns, in one storage
    arrays = {"pos1": torch.tensor([0, 1, 2]), "crd1": shared}
    tensor = loaded("CSR()", (2, 2), shared, arrays, False, False, "None")
    tensor._values.fill_(7)
    assert tensor.structure.arrays["crd1"].tolist() == [0, 1]
    assert tensor.to_dense().tolist() == [[7, 0], [0, 7]]
