"""Optimizers, schedules of the learning rate, gradient clipping, averaged weights."""

from .adam import Adam, AdamW
from .average import WeightAverage
from .clip import clip_gradients
from .optimizer import Optimizer
from .schedules import Cosine, Polynomial, Schedule, StepDecay, Warmup
from .sgd import SGD

__all__ = [
    "SGD", "Adam", "AdamW", "Cosine", "Optimizer", "Polynomial", "Schedule", "StepDecay", "Warmup", "WeightAverage",
    "clip_gradients",
]  # fmt: skip
