"""A model as a whole: measured against its dense copy, and shown first."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.pack.examples import Example
from gossamer.report.whole import Whole, measured, shown


def network():
    return gs.sparsify_(nn.Sequential(nn.Linear(32, 64), nn.Dropout(), nn.Linear(64, 8)), "75%", format=gs.CSR())


def test_by_hand():
    whole = Whole("", "1 x 8", 10.0, 4.0)
    assert whole.gain == 2.5 and whole.text == "whole model, 1 x 8: 10 ms dense, 4 ms now"
    assert "2.50x" in shown([whole]) and ">model<" not in shown([whole])
    assert ">model<" in shown([Whole("a", "1 x 8", 10.0, 4.0)])


def test_every_example_is_measured_and_the_model_stays_as_it_is():
    model = network().train()
    examples = [Example(torch.randn(n, 32)) for n in (1, 4)]
    found = measured(model, "mine", examples, seconds=0.01)
    assert [(x.model, x.case) for x in found] == [("mine", "1 x 32"), ("mine", "4 x 32")]
    assert all(x.ms > 0 and x.dense_ms > 0 for x in found)
    assert model.training and model[0].weight.format == gs.CSR()


def test_a_report_with_an_example_starts_with_it():
    made = gs.report(network(), None, example_inputs=torch.randn(4, 32), tokens=[1])
    assert len(made.whole) == 1 and made.to_dict()["whole"][0]["gain"] == pytest.approx(made.whole[0].gain)
    html = made.page().html()
    assert html.index("whole model, 4 x 32") < html.index("layers against dense")
    several = gs.report({"a": network(), "b": network()}, None, example_inputs=torch.randn(4, 32), tokens=[1])
    assert several.page().sections[0].title == "Whole models"
    assert gs.report(network(), None, tokens=[1]).whole == ()
    assert gs.report(network(), None, example_inputs=torch.randn(4, 32), measure=False).whole == ()
