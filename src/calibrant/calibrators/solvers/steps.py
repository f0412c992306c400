"""Steps beside a smooth map of a binary score: what the smooth one misses, as far as held-out rows confirm."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

PRIOR_ROWS = 10.0
"""Each step of the isotonic fit is averaged with this many rows that follow the smooth map.

They are rows of probability ½. Where positives are rare, a row carries less information, and ¼ / (p·(1 − p)) times as
many are taken.
"""

SHARE, SHARE_ROWS = 0.2, 20.0
"""The share of the steps before any row is seen, and how many rows, counted as above, that prior is worth."""

LARGEST = 1 - 1e-12

MAX_ROUNDS, ENOUGH = 200, 1e-5


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to the values (c,) in weighted squares."""
    from sklearn.isotonic import isotonic_regression

    return np.asarray(isotonic_regression(values, sample_weight=weights), dtype=np.float64)


def pooled(scores: np.ndarray, counts: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Logits (c,) of the smooth map pooled with steps: q = (1 − s)·p + s·isotonic.

    The isotonic fit reads the counts of both labels per cell; its blocks are shrunk to the smooth map. The share s has
    the largest likelihood over the held-out cells, found by the EM algorithm of a mixture with a beta prior.

    Parameters
    ----------
    scores : array (F + 1, c)
        Non-decreasing logits of the smooth map without each of F folds, and of the fit to all rows.
    counts : array (F + 1, 2, c)
        Labels 0 and 1 per cell that each of them was fitted to.
    held_out : array (F, 2, c)
        Labels per cell in each fold.
    """
    smooth = np.clip(expit(scores), 1 - LARGEST, LARGEST)
    stepped = np.stack([steps(one, given) for one, given in zip(smooth, counts, strict=True)])
    share = _share(smooth[:-1], stepped[:-1], held_out)
    mixed = (1 - share) * smooth[-1] + share * stepped[-1]
    return np.log(mixed) - np.log1p(-mixed)


def steps(smooth: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Isotonic probabilities (c,) of counts (2×c); cells without rows lie between their neighbours."""
    mass = counts.sum(axis=0)
    seen = np.flatnonzero(mass > 0)
    if not len(seen):
        return smooth
    rates = isotonic(counts[1, seen] / mass[seen], mass[seen])
    _, block = np.unique(rates, return_inverse=True)
    rows = np.bincount(block, weights=mass[seen])
    positive = np.bincount(block, weights=counts[1, seen])
    expected = np.bincount(block, weights=mass[seen] * smooth[seen]) / rows
    prior = PRIOR_ROWS * _rows_per_even_row(expected)
    shrunk = isotonic((positive + prior * expected) / (rows + prior), rows)
    found = np.interp(np.arange(len(smooth)), seen, shrunk[block])
    return np.clip(found, 1 - LARGEST, LARGEST)


def _share(smooth: np.ndarray, stepped: np.ndarray, held_out: np.ndarray) -> float:
    negative, positive = held_out[:, 0], held_out[:, 1]
    total, share = held_out.sum(), SHARE
    prior = SHARE_ROWS * float(_rows_per_even_row(positive.sum() / total))
    for _ in range(MAX_ROUNDS):
        mixed = (1 - share) * smooth + share * stepped
        owed = share * float((positive * stepped / mixed + negative * (1 - stepped) / (1 - mixed)).sum())
        following = (owed + SHARE * prior) / (total + prior)
        if abs(following - share) < ENOUGH:
            break
        share = following
    return share


def _rows_per_even_row(probability: np.ndarray | float) -> np.ndarray:
    """Rows of a probability that carry as much information on their log-odds as one row of probability ½."""
    return np.asarray(0.25 / np.maximum(probability * (1 - probability), 1e-9))
