"""LOGITS IN: files and arrays become `Predictions`, whatever their format."""

from calibrant.data.multiple_choice import multiple_choice
from calibrant.data.opening import open_parts, open_predictions
from calibrant.data.predictions import Predictions
from calibrant.data.write import write_predictions

__all__ = ["Predictions", "multiple_choice", "open_parts", "open_predictions", "write_predictions"]
