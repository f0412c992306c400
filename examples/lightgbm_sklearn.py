"""Calibrate gradient boosting through scikit-learn, with any method of the library.

python examples/lightgbm_sklearn.py        needs lightgbm

The trees are trained on one part and calibrated on another (`FrozenEstimator` keeps them as they are). Without a second
part, `CalibratedClassifier(trees, cv=5)` trains on folds and calibrates on what each left out.
"""

from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split

import calibrant as cal
from calibrant.sklearn import CalibratedClassifier


def main(n=6000, n_estimators=100):
    X, y = make_classification(
        n_samples=n, n_features=20, n_informative=10, n_classes=4, flip_y=0.15, class_sep=0.8, random_state=0
    )
    train_X, rest_X, train_y, rest_y = train_test_split(X, y, test_size=0.6, random_state=0, stratify=y)
    val_X, test_X, val_y, test_y = train_test_split(rest_X, rest_y, test_size=0.5, random_state=0, stratify=rest_y)
    trees = LGBMClassifier(n_estimators=n_estimators, random_state=0, n_jobs=1, verbose=-1).fit(train_X, train_y)
    models = {"plain": trees}
    for method in ("ts", "shape"):
        models[method] = CalibratedClassifier(FrozenEstimator(trees), method=method).fit(val_X, val_y)
    figures = {}
    print(f"{'model':8s} {'accuracy':>8s} {'ECE':>7s} {'NLL':>7s}")
    for name, model in models.items():
        p = model.predict_proba(test_X)
        figures[name] = cal.metrics.ece(p, test_y), cal.metrics.nll(p, test_y)
        print(f"{name:8s} {cal.metrics.accuracy(p, test_y):8.3f} {figures[name][0]:7.4f} {figures[name][1]:7.4f}")
    return figures


if __name__ == "__main__":
    main()
