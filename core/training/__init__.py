"""Training: batches read ahead, the loop, and what it takes to go on where a run stopped."""

from .loader import ItemError, Loader
from .loop import Losses, NotFiniteError, Step, Training, train

__all__ = ["ItemError", "Loader", "Losses", "NotFiniteError", "Step", "Training", "train"]
