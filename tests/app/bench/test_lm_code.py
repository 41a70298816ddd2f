"""The text of Python sources: packages to train on, others to report and to choose by."""

import hashlib
from pathlib import Path

import pytest
import torch

from gossamer.app.bench import lm_code, lm_model


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three small packages."""
    for name in ("first", "second", "third"):
        folder = tmp_path / f"{name}_of_gossamer"
        (folder / "sub").mkdir(parents=True)
        (folder / "__init__.py").write_text(f"{name} = 1\n" * 5000)
        (folder / "sub" / "b.py").write_text("b = 2\n")
        (folder / "sub" / "a.py").write_text("a = 2\n")
        (folder / "table.py").write_text("0, " * 100_000)
        (folder / "notes.txt").write_text("no code")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_sources_are_sorted_and_have_no_tables(installed: Path) -> None:
    found = [path.relative_to(installed / "first_of_gossamer") for path in lm_code.sources("first_of_gossamer")]
    assert list(map(str, found)) == ["__init__.py", "sub/a.py", "sub/b.py"]
    with pytest.raises(ImportError, match="pip install nothing_like_this"):
        list(lm_code.sources("nothing_like_this"))


def test_packages_are_not_mixed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name in (("TRAINED", "first"), ("REPORTED", "second"), ("CHOSEN_BY", "third")):
        for module in (lm_code, lm_model):
            monkeypatch.setattr(module, where, (f"{name}_of_gossamer",))
    train, held, choice = lm_model.text_of("code")
    assert choice is not None
    texts = [bytes(part.tolist()).decode() for part in (train, held, choice)]
    assert [text.split()[0] for text in texts] == ["first", "second", "third"]
    assert not any("first" in text for text in texts[1:])
    monkeypatch.setattr("importlib.metadata.version", lambda package: "1.0")
    told = lm_code.described()
    assert told["bytes"]["first_of_gossamer"] == len(train) and set(told["versions"].values()) == {"1.0"}
    every = b"".join(lm_code.read([f"{name}_of_gossamer"]) for name in ("first", "second", "third"))
    assert told["digest"] == hashlib.sha256(every).hexdigest()


def test_pieces_are_spread_over_the_text() -> None:
    text = torch.arange(10 * 4096) // 4096
    assert lm_code.pieces(text, 3).unique().tolist() == [0, 3, 6]
    assert torch.equal(lm_code.pieces(text, 100), text)
