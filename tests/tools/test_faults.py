"""The list of faults for benchmarks/mutants.py fits the sources: a change of a source must change its fault too."""

from pathlib import Path

import pytest

import gossamer
from benchmarks import mutants

SOURCES = Path(gossamer.__file__).parent


def test_a_fault_by_hand():
    fault = mutants.Fault("core/table.py", "a + b", "a - b")
    assert mutants.faulty(fault, "return a + b") == "return a - b"
    for text in ("return a", "return a + b + (a + b)"):
        with pytest.raises(ValueError, match=r"must be once: bring benchmarks/faults\.toml up to date"):
            mutants.faulty(fault, text)


def test_every_fault_changes_its_source_and_has_tests():
    for fault in mutants.faults():
        text = (SOURCES / fault.source).read_text()
        assert mutants.faulty(fault, text) != text and mutants.tests_of(fault)
