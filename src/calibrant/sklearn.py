"""The scikit-learn side of calibrant, under its public name."""

from calibrant.shipping.sklearn import CalibratedClassifier, class_logits, load_classifier, save_classifier, scorer

__all__ = ["CalibratedClassifier", "class_logits", "load_classifier", "save_classifier", "scorer"]
