"""Every module has a test file at the mirrored path: ``core/copies.py`` in ``tests/core/test_copies.py``."""

from pathlib import Path

import gossamer

SOURCES = Path(gossamer.__file__).parent
TESTS = Path(__file__).parent


def modules() -> list[Path]:
    return sorted(p.relative_to(SOURCES) for p in SOURCES.rglob("*.py") if p.name != "__init__.py")


def mirrored(module: Path) -> Path:
    return TESTS / module.parent / f"test_{module.stem.strip('_')}.py"


def test_the_mirror_by_hand():
    assert mirrored(Path("core/copies.py")) == TESTS / "core" / "test_copies.py"
    assert mirrored(Path("patterns/_rank.py")) == TESTS / "patterns" / "test_rank.py"
    assert mirrored(Path("__main__.py")) == TESTS / "test_main.py"
    assert Path("core/copies.py") in modules() and len(modules()) > 200


def test_every_module_has_a_test_file():
    missing = [str(m) for m in modules() if not mirrored(m).exists()]
    assert not missing, f"no test file at the mirrored path: {', '.join(missing)}"
