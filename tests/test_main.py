"""``python -m gossamer`` is the command."""

import runpy
import sys

import pytest


def test_python_m_gossamer(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gossamer", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gossamer", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: python -m gossamer")
