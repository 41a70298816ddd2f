"""What the CPU kernels are built of."""

import hashlib
import shutil

import pytest

from gossamer.native import recipe


def test_every_unit_and_header_is_there():
    for machine in ("x86_64", "aarch64"):
        units = recipe.units(machine)
        assert {"baseline", "binding", "dispatch"} <= set(units)
        assert all(source.is_file() and source.suffix == ".cpp" for source, _ in units.values())
    assert recipe.headers() and all(path.suffix == ".h" and path.is_file() for path in recipe.headers())


def test_instruction_sets_are_for_their_processor_only():
    assert not any("avx" in name for name in recipe.units("aarch64"))
    units = recipe.units("x86_64")
    assert "-mavx2" in units["avx2"][1] and any(flag.startswith("-mavx512") for flag in units["avx512"][1])
    assert units["baseline"][1] == recipe.units("aarch64")["baseline"][1]
    assert "-O3" in recipe.flags() and "-ffast-math" not in recipe.flags()


def test_lists_of_flags_are_copies():
    recipe.units("x86_64")["avx2"][1].append("-wrong")
    assert "-wrong" not in recipe.units("x86_64")["avx2"][1]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    sources = tmp_path / "cpu"
    sources.mkdir()
    (sources / "b.h").write_text("b")
    (sources / "a.cpp").write_text("a")
    (sources / "notes.md").write_text("no source")
    monkeypatch.setattr(recipe, "SOURCES", sources)
    monkeypatch.setattr(recipe, "HERE", tmp_path)
    return sources


def test_the_digest_by_hand(copy):
    lines = "".join(f"{name} {hashlib.sha256(text).hexdigest()}\n" for name, text in (("a.cpp", b"a"), ("b.h", b"b")))
    assert recipe.digest() == hashlib.sha256(lines.encode()).hexdigest()[:16]


def test_a_library_of_other_sources_is_not_the_installed_one(copy):
    assert recipe.installed() is None
    library = copy.parent / f"gossamer_cpu-{recipe.digest()}.so"
    library.write_text("")
    assert recipe.installed() == library
    (copy / "notes.md").write_text("changed")
    assert recipe.installed() == library
    (copy / "b.h").write_text("changed")
    assert recipe.installed() is None
    shutil.copy(library, copy.parent / f"gossamer_cpu-{recipe.digest()}.so")
    assert recipe.installed() is not None
