"""Pictures of masks: every kept value of the corner is drawn, and the whole is its density."""

import re

import torch

from gossamer.report.masks import picture


def area(svg: str) -> int:
    return sum(int(length) for length in re.findall(r"h(\d+)v1", svg))


def test_the_corner_draws_each_kept_value_once():
    mask = torch.rand(100, 80) > 0.8
    corner, _ = picture(mask).svgs()
    assert area(corner) == int(mask[:64, :64].sum())


def test_the_whole_is_the_mean_of_its_parts():
    mask = torch.zeros(64, 64, dtype=torch.bool)
    mask[:32, :32] = True
    whole = torch.tensor(picture(mask).whole)
    assert whole[:16, :16].min() == 1
    assert whole.sum() == 256


def test_a_picture_stays_small_whatever_the_mask():
    corner, whole = picture(torch.rand(3000, 2000) > 0.5).svgs()
    assert len(corner) + len(whole) < 60_000


def test_odd_shapes():
    for shape in ((1, 1), (1, 700), (700, 1), (5,), (3, 2, 2)):
        corner, whole = picture(torch.ones(shape, dtype=torch.bool)).svgs()
        assert corner.startswith("<svg") and whole.startswith("<svg")
    picture(torch.zeros(8, 8, dtype=torch.bool)).svgs()


def test_data_for_masks_that_are_drawn_on_demand():
    corner, whole = picture(torch.eye(4).bool()).canvases()
    assert 'width="4" height="4"' in corner and 'data-shades="50c 050b 0b50 0c5"' in corner
    assert "the whole mask by density" in whole
    assert 'data-shades="0z0f"' in picture(torch.zeros(1, 32).bool()).canvases()[1]
