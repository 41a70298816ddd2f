"""Every module has a test file at the mirrored path: ``core/copies.py`` in ``tests/core/test_copies.py``."""

from fnmatch import fnmatchcase
from pathlib import Path

import gossamer

SOURCES = Path(gossamer.__file__).parent
TESTS = Path(__file__).parent

#: Modules without a test file of their own, and why. The list may only become shorter.
LEFT = {
    "app/*": "tested as commands, in tests/app",
    "compiler/*": "stages are tested together: golden IR, and the interpreter against compiled code",
    "kernels/int8/*": "tested as a family, in tests/kernels/int8",
    "kernels/vnm/*": "tested as a family, in tests/kernels/vnm",
    "models/pack/*": "tested as a whole, in tests/models/pack",
    "ops/compiled.py": "tests/ops/test_einsum*.py",
    "ops/torch_einsum.py": "tests/ops/test_einsum*.py",
    "train/*": "methods are tested by what they do to a model, in tests/train",
}


def modules() -> list[Path]:
    return sorted(
        p.relative_to(SOURCES) for p in SOURCES.rglob("*.py") if p.name != "__init__.py" and "clone" not in p.parts
    )


def mirrored(module: Path) -> Path:
    return TESTS / module.parent / f"test_{module.stem.strip('_')}.py"


def test_the_mirror_by_hand():
    assert mirrored(Path("core/copies.py")) == TESTS / "core" / "test_copies.py"
    assert mirrored(Path("patterns/_rank.py")) == TESTS / "patterns" / "test_rank.py"
    assert mirrored(Path("__main__.py")) == TESTS / "test_main.py"
    assert Path("core/copies.py") in modules() and len(modules()) > 200


def test_every_module_has_a_test_file():
    missing = [str(m) for m in modules() if not mirrored(m).exists()]
    missing = [m for m in missing if not any(fnmatchcase(m, glob) for glob in LEFT)]
    assert not missing, f"no test file at the mirrored path: {', '.join(missing)}"


def test_what_is_left_is_still_left():
    """A line that excuses nothing any more is removed."""
    without = [str(m) for m in modules() if not mirrored(m).exists()]
    idle = [glob for glob in LEFT if not any(fnmatchcase(m, glob) for m in without)]
    assert not idle, f"every module has its test file now, remove from LEFT: {', '.join(idle)}"
