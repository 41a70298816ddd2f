"""Machine code on disk: one file for each request, whole or not at all."""

import pytest

from gossamer.native.cuda import cache


class FakeCompiler:
    version = "fake 1.0"

    def __init__(self):
        self.calls = []

    def compile(self, source, name, arch, flags, folder):
        self.calls.append((name, arch, tuple(flags)))
        return f"{source}|{arch}|{flags}".encode() * 3


@pytest.fixture
def fake(monkeypatch, tmp_path):
    made = FakeCompiler()
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "compiler", lambda: made)
    (tmp_path / "one.cu").write_text("kernel")
    return made, tmp_path


def test_compiled_once_for_each_request(fake):
    made, folder = fake
    first = cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    assert cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder) == first
    assert made.calls == [("one.cu", "sm_80", ("-DA=1",))]
    cache.cubin("one.cu", "sm_90a", {"A": 1}, folder=folder)
    cache.cubin("one.cu", "sm_80", {"A": 2}, folder=folder)
    (folder / "header.cuh").write_text("changed")
    cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    (folder / "one.cu").write_text("another kernel")
    cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    made.version = "fake 2.0"
    cache.cubin("one.cu", "sm_80", {"A": 1}, folder=folder)
    assert len(made.calls) == 6


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"x" + b[41:]])
def test_a_damaged_file_is_made_anew(fake, damage):
    made, folder = fake
    first = cache.cubin("one.cu", "sm_80", {}, folder=folder)
    (file,) = (folder / "cache" / "cuda").glob("*.cubin")
    file.write_bytes(damage(file.read_bytes()))
    assert cache.cubin("one.cu", "sm_80", {}, folder=folder) == first
    assert cache.cubin("one.cu", "sm_80", {}, folder=folder) == first
    assert len(made.calls) == 2


def test_a_cache_that_cannot_be_written_is_only_slower(fake, monkeypatch):
    made, folder = fake
    (folder / "file").write_text("")
    monkeypatch.setenv("GOSSAMER_CACHE", str(folder / "file" / "below"))
    assert cache.cubin("one.cu", "sm_80", {}, folder=folder) == cache.cubin("one.cu", "sm_80", {}, folder=folder)
    assert len(made.calls) == 2


def test_macros_in_any_order_are_one_request(fake):
    made, folder = fake
    cache.cubin("one.cu", "sm_80", {"A": 1, "B": 2}, folder=folder)
    cache.cubin("one.cu", "sm_80", {"B": 2, "A": 1}, folder=folder)
    assert made.calls == [("one.cu", "sm_80", ("-DA=1", "-DB=2"))]


def test_no_half_written_file_is_left(fake):
    _, folder = fake
    cache.cubin("one.cu", "sm_80", {}, folder=folder)
    (file,) = (folder / "cache" / "cuda").iterdir()
    assert file.name.startswith("one-") and file.suffix == ".cubin"
