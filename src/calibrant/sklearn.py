"""The scikit-learn side of calibrant, under its public name."""

from calibrant.shipping.classifier_files import load_classifier, save_classifier
from calibrant.shipping.sklearn import CalibratedClassifier, class_logits

__all__ = ["CalibratedClassifier", "class_logits", "load_classifier", "save_classifier"]
