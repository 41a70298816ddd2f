"""Shared by training and pruning: the layers of a model as matrices, and their scores. See README.md."""

from gossamer.methods.layers import Layer, layers_of
from gossamer.methods.scoring import scores_of
from gossamer.methods.survey import Survey, survey
from gossamer.models.coverage import Left, taken_and_left

__all__ = ["Layer", "Left", "Survey", "layers_of", "scores_of", "survey", "taken_and_left"]
