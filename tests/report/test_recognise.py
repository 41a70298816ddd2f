"""Patterns are read off masks: every pattern that gossamer draws is named as it was asked for."""

import pytest
import torch

import gossamer as gs
from gossamer.patterns import as_pattern
from gossamer.report.recognise import recognise

SAME = ["2:4", "1:4", "4:8", "1:8", "2:10", "64:2:8", "32:2:16", "all:2:8", "1:4:g8", "2:4:g4", "1:8:g16"]


@pytest.mark.parametrize("pattern", SAME)
def test_n_of_m_in_all_its_kinds(pattern):
    assert recognise(as_pattern(pattern).select(torch.rand(256, 320))) == pattern


@pytest.mark.parametrize("side", [2, 4, 8, 16])
def test_blocks(side):
    mask = gs.Blocks(0.75, (side, side)).select(torch.rand(128, 128))
    assert recognise(mask) == f"block {side}x{side}"


def test_fan_in_with_and_without_rows_that_are_gone():
    mask = gs.FanIn(k=7).select(torch.rand(64, 100))
    assert recognise(mask) == "fan-in k=7"
    mask[[3, 9]] = False
    assert recognise(mask) == "fan-in k=7, 2 rows gone"


def test_nothing_special():
    assert recognise(gs.Unstructured(0.5).select(torch.rand(64, 64))) == "unstructured"
    assert recognise(torch.ones(4, 4, dtype=torch.bool)) == "dense"
    assert recognise(torch.zeros(4, 4, dtype=torch.bool)) == "empty"
    assert recognise(torch.zeros(0, 4, dtype=torch.bool)) == "dense"
    assert recognise(torch.tensor([True, False, True, True, True, True, False])) == "unstructured"  # a vector


def test_columns_and_rows_that_are_no_multiple():
    assert recognise(gs.NM(2, 4).select(torch.rand(32, 30))) == "2:4"
    assert recognise(gs.GroupedNM(1, 20, 8).select(torch.rand(500, 508))) == "1:20:g8"
