"""Bars on a terminal, silence elsewhere."""

import os
import pty
import subprocess
import sys

from gossamer.progress import progress, watched

CODE = "from gossamer.progress import progress\nwith progress('counting', 2) as tell:\n    tell('one', 0.5, 1)\n"


def test_silent_without_a_terminal(capfd):
    with progress("counting", 2) as tell:
        tell("one", None, 1)
    assert list(watched("packing", {"a": 1, "b": 2}.items())) == [("a", 1), ("b", 2)]
    assert capfd.readouterr() == ("", "")


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
