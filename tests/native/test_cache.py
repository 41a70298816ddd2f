"""The cache of built code: nobody else can put code there, and it has a limit."""

import os
import stat

import pytest

from gossamer.native import cache

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files here")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_made_for_the_user_alone(root):
    before = os.umask(0)
    try:
        path = cache.folder("kernels")
    finally:
        os.umask(before)
    assert path == root / "kernels" and mode(path) == mode(root) == 0o700


def test_a_folder_of_ours_is_closed_to_others(root):
    cache.folder("kernels").chmod(0o777)
    assert mode(cache.folder("kernels")) == 0o755


@pytest.mark.parametrize("wide", [0o777, 0o775, 0o722])
def test_a_named_folder_that_others_can_write_is_refused_and_left_as_it_is(root, wide):
    cache.folder("kernels")
    root.chmod(wide)
    with pytest.raises(cache.BuildError, match="other users can write to"):
        cache.folder("kernels")
    assert mode(root) == wide


def test_the_default_folder_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.delenv("GOSSAMER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gossamer").mkdir()
    (tmp_path / "gossamer").chmod(0o775)  # as earlier versions made it where users have a group of their own
    cache.folder("kernels")
    assert mode(tmp_path / "gossamer") == 0o755


def test_a_folder_in_which_others_could_replace_ours_is_refused(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "shared" / "mine"))
    with pytest.raises(cache.BuildError, match="other users can write to"):
        cache.folder("kernels")
    (tmp_path / "shared").chmod(0o1777)  # as /tmp is: others can't rename what is ours
    assert cache.folder("kernels").is_dir()


def test_a_folder_of_another_user_is_refused(root, monkeypatch):
    cache.folder("kernels")
    monkeypatch.setattr(cache, "_owners", lambda: {12345})
    with pytest.raises(cache.BuildError, match="belongs to another user"):
        cache.folder("kernels")


def test_files_are_loaded_only_if_nobody_else_could_change_them(root, monkeypatch, caplog):
    file = cache.folder("kernels") / "a.so"
    file.write_bytes(b"code")
    file.chmod(0o700)
    assert cache.trusted(file) and not caplog.records
    for wide in (0o720, 0o702, 0o777):
        file.chmod(wide)
        assert not cache.trusted(file)
    file.chmod(0o700)
    (file.parent / "link.so").symlink_to(file)
    assert not cache.trusted(file.parent / "link.so")
    assert not cache.trusted(file.parent / "missing.so")
    monkeypatch.setattr(cache, "_owners", lambda: {12345})
    assert not cache.trusted(file) and "not loaded" in caplog.text


def test_what_was_not_used_for_longest_is_removed(root, monkeypatch):
    path = cache.folder("kernels")
    monkeypatch.setattr(cache, "LIMIT", 4000)
    for n in range(5):
        (path / f"{n}.so").write_bytes(bytes(1000))
        os.utime(path / f"{n}.so", ns=(n, n))
    (path / "notes.txt").write_bytes(bytes(9000))
    cache.used(path / "0.so")
    assert (path / "0.so").stat().st_mtime_ns == 0  # the time of its change is as it was
    cache.trim(path)
    assert sorted(p.name for p in path.iterdir()) == ["0.so", "3.so", "4.so", "notes.txt"]
    cache.trim(path)
    assert len(list(path.glob("*.so"))) == 3


def test_one_file_above_the_limit_is_kept(root, monkeypatch):
    path = cache.folder("kernels")
    monkeypatch.setattr(cache, "LIMIT", 10)
    (path / "large.so").write_bytes(bytes(1000))
    cache.trim(path)
    assert (path / "large.so").exists()


def test_what_killed_builds_left_is_removed_an_hour_later(root):
    path = cache.folder("native")
    old, new, file = path / ".build-old", path / ".build-new", path / ".cubin-old"
    for folder in (old, new):
        folder.mkdir()
        (folder / "library.o").write_text("half")
    file.write_text("half")
    for left in (old, file):
        os.utime(left, (0, 0))
    cache.trim(path)
    assert sorted(p.name for p in path.iterdir()) == [".build-new"]
