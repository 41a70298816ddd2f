"""Bars on a terminal; elsewhere silence, or lines where the command line asks for them."""

import os
import pty
import subprocess
import sys

import gossamer.progress
from gossamer.progress import in_lines, progress, watched

CODE = "from gossamer.progress import progress\nwith progress('counting', 2) as tell:\n    tell('one', 0.5, 1)\n"


def test_silent_without_a_terminal(capfd):
    with progress("counting", 2) as tell:
        tell("one", None, 1)
    assert list(watched("packing", {"a": 1, "b": 2}.items())) == [("a", 1), ("b", 2)]
    assert capfd.readouterr() == ("", "")


def test_lines_for_the_command_line(capfd, monkeypatch):
    """The first comes after two seconds, the next ones after a tenth of the time so far: from two seconds to thirty."""
    clock = iter([0.0, 1.9, 2.0, 3.0, 200.0, 219.0, 220.5])
    monkeypatch.setattr(gossamer.progress.time, "monotonic", lambda: next(clock))
    token = in_lines.set(True)
    try:
        with progress("pruning", 6) as tell:
            for name in "abcdef":
                tell(name, None, 1)
    finally:
        in_lines.reset(token)
    assert capfd.readouterr().err.splitlines() == [
        "pruning 2 of 6, 2 s: b", "pruning 4 of 6, 200 s: d", "pruning 6 of 6, 220 s: f",
    ]  # fmt: skip


def test_shown_on_a_terminal():
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", CODE], stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(main)
    assert process.returncode == 0
    assert b"counting one" in shown
