"""Scaling of class-wise training losses (Jung et al. 2023): tables 1–3, figures 1 and 4, and the paper's claims."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.calibrators.registry import get
from calibrant.evaluation.bootstrap import Resamples, draw, percentile_interval
from studies.descent import LOSSES, Descent, descend, share_of_worst
from studies.measuring import (
    Estimate,
    Measured,
    above_zero,
    below_zero,
    each,
    fit_and_measure,
    higher,
    lower,
    mean,
    measure,
    measurements_of,
    name_all,
    percent,
    pooled,
    signed,
)
from studies.networks import Network, one_of_fewest_classes, read_networks
from studies.sctl_ablation import Shape, ablation_claims, ablation_fits, ablation_table, shape_of
from studies.sctl_authors import authors_study
from studies.sctl_calibrators import BASES, calibrator_with_loss, plain_calibrator
from studies.study import Study, Table, by_row, marked
from verdicts import Claim, Count

LOSS_NAMES = {"LS": "label_smoothing", "FL": "focal", "Ours": "cross_entropy"}
NORMALIZATIONS = {"ND": "normal", "CM": "centered_minmax", "MM": "minmax"}

CROSS_ENTROPY = "_ce"
"""End of the names of networks trained with cross entropy, the paper's kind."""

Fits = Mapping[str, Measured]


@dataclass(frozen=True)
class LossesAndError:
    """One network's calibrators as points: test ECE beside total loss and variance of the class losses."""

    names: tuple[str, ...]
    ece: np.ndarray
    total: np.ndarray
    variance: np.ndarray
    correlations: dict[str, tuple[float, float, float]]


def run(folder: str | os.PathLike[str], *, resamples: int, seed: int, workers: int = 1) -> Study:
    """Fit four calibrators under every loss on every network of the folder."""
    networks = read_networks(folder, "zoo")
    results = each(_fit, networks, workers, resamples, seed)
    fits = {network.name: result[0] for network, result in zip(networks, results, strict=True)}
    points = {network.name: result[1] for network, result in zip(networks, results, strict=True)}
    shapes = {network.name: result[2] for network, result in zip(networks, results, strict=True)}
    tailed = [network.name for network in networks if network.long_tailed]
    balanced = [name for name in fits if name not in tailed]
    groups = [("Table 1: balanced data", balanced), ("Table 2: long-tailed val, balanced test", tailed)]
    shown = one_of_fewest_classes(networks)
    traces = {loss: descend(shown.val_logits, shown.val_labels, loss) for loss in LOSSES}
    tables = [table_of_losses(title, {name: fits[name] for name in names}) for title, names in groups if names]
    authors = authors_study(folder, resamples, seed, workers)
    claims = (
        *_claims(fits, balanced, tailed),
        *authors.claims,
        *ablation_claims({**fits, **authors.fits}, {**shapes, **authors.shapes}, [*tailed, *authors.fits]),
        *_normalization_claims(fits),
        _trace_claim(shown.name, traces),
        *_states_claims(shown, traces["Top 3"], draw(len(shown.val_labels), resamples, seed)),
    )
    return Study(
        "sctl",
        tables=(
            *tables,
            *authors.tables,
            ablation_table({**fits, **authors.fits}, {**shapes, **authors.shapes}),
            table_of_normalizations(fits),
            table_of_correlations(points),
            table_of_traces(shown, traces),
            table_of_shares(shown, traces["Top 3"]),
        ),
        claims=claims,
        figures={"points": points, "traces": traces, "traced": shown.name},
        measurements=measurements_of(claims),
    )


def _fit(network: Network, resamples: int, seed: int) -> tuple[dict[str, Measured], LossesAndError, Shape]:
    drawn = draw(len(network.test_labels), resamples, seed)
    fits = {"Uncalibrated": fit_and_measure(get("none"), network, drawn)}
    for base in BASES:
        fits[base] = fit_and_measure(plain_calibrator(base), network, drawn)
        for word, loss in LOSS_NAMES.items():
            fits[f"{base}+{word}"] = fit_and_measure(calibrator_with_loss(base, loss), network, drawn)
        for word, normalization in NORMALIZATIONS.items():
            if normalization == "normal":
                fits[f"{base} {word}"] = fits[f"{base}+Ours"]
                continue
            calibrator = calibrator_with_loss(base, "cross_entropy", normalization=normalization)
            fits[f"{base} {word}"] = fit_and_measure(calibrator, network, drawn)
    points = losses_and_error(fits, network.test_labels, drawn)
    shape = shape_of(network, fits["TS+Ours"].calibrator)
    return name_all({**fits, **ablation_fits(network, drawn)}, network.name), points, shape


def losses_and_error(fits: Fits, labels: np.ndarray, drawn: Resamples) -> LossesAndError:
    """Correlations over the calibrators of a network, with intervals over resamples of its test rows."""
    chosen = {name: fit for name, fit in fits.items() if " " not in name}
    n_classes = int(labels.max()) + 1
    onehot = np.zeros((len(labels[drawn.rows]), n_classes), dtype=np.float32)
    onehot[np.arange(len(onehot)), labels[drawn.rows]] = 1.0
    weight = np.maximum(drawn.sums(onehot), 1.0)
    ece, total, variance, draws = [], [], [], []
    for fit in chosen.values():
        losses = np.bincount(labels, fit.nll, minlength=n_classes) / np.maximum(np.bincount(labels), 1)
        resampled = drawn.sums(onehot * fit.nll[drawn.rows][:, None].astype(np.float32)) / weight
        values = losses.mean(), losses.var(ddof=1)
        spreads = resampled.mean(axis=1), resampled.var(axis=1, ddof=1)
        ece.append(fit.ece.value)
        total.append(values[0])
        variance.append(values[1])
        recentred = [value + some - some.mean() for value, some in zip(values, spreads, strict=True)]
        draws.append((fit.ece.draws, *recentred))
    errors, totals, variances = (np.stack(part) for part in zip(*draws, strict=True))
    correlations = {}
    for word, points, table in (("total loss", total, totals), ("variance of class losses", variance, variances)):
        value = _correlation(np.array(ece), np.array(points))
        each_draw = np.array([_correlation(e, v) for e, v in zip(errors.T, table.T, strict=True)])
        correlations[word] = (value, *percentile_interval(each_draw, value))
    return LossesAndError(tuple(chosen), np.array(ece), np.array(total), np.array(variance), correlations)


def table_of_losses(title: str, fits: Mapping[str, Fits]) -> Table:
    """ECE (accuracy) of every calibrator under every loss, with the average of each block."""
    names = ["Uncalibrated"]
    columns: dict[str, list[str]] = {name: [] for name in fits}
    values: dict[str, list[float]] = {name: [] for name in fits}
    for name, fit in fits.items():
        _add(columns[name], values[name], fit["Uncalibrated"].ece, fit["Uncalibrated"].accuracy, "")
    for loss in ("", *LOSS_NAMES):
        rows = [base + (f"+{loss}" if loss else "") for base in BASES]
        names += [*rows, f"Average{' ' + loss if loss else ''}"]
        for name, fit in fits.items():
            for row in rows:
                mark = "" if fit[row].settled else "†"
                _add(columns[name], values[name], fit[row].ece, fit[row].accuracy, mark)
            _add(
                columns[name],
                values[name],
                mean([fit[row].ece for row in rows]),
                mean([fit[row].accuracy for row in rows]),
                "",
            )
            values[name][-1] = float("nan")
    cells = marked(list(values.values()), list(columns.values()))
    note = (
        "ECE ± bootstrap standard deviation (accuracy), in %, 15 bins. **Lowest**, <u>second</u> of each network. "
        "LS: label smoothing 0.05; FL: focal loss of γ = 3; Ours: class-loss scaling. † the refits had not settled."
    )
    return Table(f"{title}: ECE (accuracy)", tuple(fits), by_row(names, cells), note)


def _add(column: list[str], values: list[float], error: Estimate, accuracy: Estimate, mark: str) -> None:
    column.append(f"{percent(error.value)}{mark} ± {percent(error.spread)} ({percent(accuracy.value)})")
    values.append(100 * error.value)


def table_of_normalizations(fits: Mapping[str, Fits]) -> Table:
    """Table 3: the three normalisations of the class losses beside the plain calibrator."""
    names: list[str] = []
    texts: dict[str, list[str]] = {name: [] for name in fits}
    for base in BASES:
        rows = [base, *(f"{base} {word}" for word in NORMALIZATIONS)]
        names += [f"{base} base", *rows[1:]]
        for name, fit in fits.items():
            block = [100 * fit[row].ece.value for row in rows]
            marks = ["" if fit[row].settled else "†" for row in rows]
            words = [f"{percent(fit[row].ece.value)}{mark}" for row, mark in zip(rows, marks, strict=True)]
            # the paper marks the best of each calibrator, not of the column
            texts[name] += marked([block], [words])[0]
    note = "ECE in %. ND: mean and standard deviation; CM: centred min–max; MM: min–max. Marks within each calibrator."
    return Table("Table 3: normalisations", tuple(fits), by_row(names, list(texts.values())), note)


def table_of_correlations(points: Mapping[str, LossesAndError]) -> Table:
    """Figure 1 in numbers."""
    words = list(next(iter(points.values())).correlations)
    columns = [
        ["{:.2f} [{:.2f}, {:.2f}]".format(*one.correlations[word]).replace("-", "−") for word in words]
        for one in points.values()
    ]
    note = "Pearson correlation with the test ECE over the calibrators of tables 1 and 2, with 95% bootstrap intervals."
    return Table("Figure 1: what goes with the calibration error", tuple(points), by_row(words, columns), note)


def table_of_traces(network: Network, traces: Mapping[str, Descent]) -> Table:
    """Figures 3 and 4 in numbers: where descent on the temperature ends, and what moves with the ECE on the way."""
    columns = ("T", "total loss", "std of class losses", "ECE %", "r(ECE, total)", "r(ECE, std)")
    rows = []
    for loss, trace in traces.items():
        ends = (trace.temperature[-1], trace.total[-1], trace.spread[-1])
        related = (_correlation(trace.ece, trace.total), _correlation(trace.ece, trace.spread))
        cells = [*(f"{value:.3f}" for value in ends), percent(trace.ece[-1]), *(f"{value:.2f}" for value in related)]
        rows.append((loss, tuple(cell.replace("-", "−") for cell in cells)))
    note = (
        f"{network.name}: one temperature by gradient descent on the {len(network.val_labels):,} fit rows, measured on "
        "them. Top 3: only the classes of the three highest losses count (eq. 2)."
    )
    return Table("Figures 3 and 4: descent on the temperature", columns, tuple(rows), note)


def _claims(fits: Mapping[str, Fits], balanced: Sequence[str], tailed: Sequence[str]) -> list[Claim]:
    claims = []
    plain = [name for name in balanced if name.endswith(CROSS_ENTROPY)] or list(balanced)
    groups = (
        ("balanced data (table 1)", plain, "39 of 40 lower; mean −0.23"),
        ("two long-tailed networks of ours (table 2)", tailed, "32 of 32 lower; mean −3.55"),
    )
    for where, names, paper in groups:
        if names:
            words, holds = lower([[_gain(fits[name], base, "Ours") for base in BASES] for name in names])
            claims.append(Claim(f"Class-loss scaling lowers the ECE on {where}", paper, words, holds))
    if len(plain) < len(balanced):
        words, holds = lower([[_gain(fits[name], base, "Ours") for base in BASES] for name in balanced])
        claim = "Class-loss scaling lowers the ECE on all balanced networks, those of label smoothing and MMCE too"
        claims.append(Claim(claim, "not studied", words, holds))
    for base in BASES if plain else ():
        gains = [_gain(fits[name], base, "Ours") for name in plain]
        claim = f"Class-loss scaling lowers the ECE of {base} on balanced data (table 1)"
        claims.append(Claim(claim, "9 or 10 of 10", *lower(gains)))
    for name in tailed:
        fit = fits[name]
        difference = _gain(fit, "TS", "Ours")
        words = f"{percent(fit['TS'].ece.value)} → {percent(fit['TS+Ours'].ece.value)}: {signed(difference)} points"
        claim = f"TS+Ours has a lower ECE than TS on {name} (table 2)"
        claims.append(Claim(claim, "−1.28 to −4.45", words, below_zero(difference)))
    for loss, paper in (("LS", "34 of 40 higher; mean +3.90"), ("FL", "33 of 40 higher; mean +4.87")):
        gains = [[_gain(fits[name], base, loss) for base in BASES] for name in plain]
        if gains:
            claims.append(Claim(f"{loss} raises the ECE on balanced data (table 1)", paper, *higher(gains)))
    return [*claims, *_accuracy_claims(fits, balanced, tailed)]


def _accuracy_claims(fits: Mapping[str, Fits], balanced: Sequence[str], tailed: Sequence[str]) -> list[Claim]:
    changed = {
        f"{base} {name}": int((fit[f"{base}+Ours"].prediction != fit["Uncalibrated"].prediction).sum())
        for name, fit in fits.items()
        for base in BASES
        if base != "CTS"
    }
    judged = Count(changed, 0, 0)
    words = f"no prediction changes in {judged.within} of {len(changed)} fits"
    claims = [Claim("TS, ETS and PTS keep their accuracy with class-loss scaling (table 1)", "0.00", words, judged)]
    change = pooled([fits[name]["CTS+Ours"].accuracy - fits[name]["CTS"].accuracy for name in balanced or fits])
    claim = "The accuracy of CTS falls by less than half a point with class-loss scaling (margin of ours)"
    words = f"CTS+Ours − CTS: {signed(change)} points"
    claims.append(Claim(claim, "not claimed", words, above_zero(change, -0.005)))
    if tailed:
        raised = [fits[name]["CTS+Ours"].accuracy - fits[name]["CTS"].accuracy for name in tailed]
        claim = "CTS+Ours raises accuracy on two long-tailed networks of ours (table 2)"
        claims.append(Claim(claim, "+1.58 to +3.41", *higher(raised)))
    return claims


def _gain(fit: Fits, base: str, loss: str) -> Estimate:
    return fit[f"{base}+{loss}"].ece - fit[base].ece


def _normalization_claims(fits: Mapping[str, Fits]) -> list[Claim]:
    claims = []
    for word in ("CM", "MM"):
        pairs = [[fit[f"{base} ND"].ece - fit[f"{base} {word}"].ece for base in BASES] for fit in fits.values()]
        claim = f"Normalising by mean and standard deviation (ND) has a lower ECE than {word} (table 3)"
        claims.append(Claim(claim, "ND lowest of the three in 37 of 40", *lower(pairs)))
    return claims


def _trace_claim(name: str, traces: Mapping[str, Descent]) -> Claim:
    traces = {loss: trace for loss, trace in traces.items() if loss != "Top 3"}
    rise = {loss: float(trace.total[-1] - trace.total.min()) for loss, trace in traces.items()}
    words = ", ".join(f"{loss} {value:.4f}" for loss, value in rise.items())
    errors = ", ".join(f"{loss} {percent(trace.ece[-1])}" for loss, trace in traces.items())
    stable = max(rise["CE"], rise["Ours"])
    verdict = Count({loss: rise[loss] / max(stable, 1e-6) for loss in ("LS", "FL")}, least=10)
    claim = "As descent goes on, the total loss of LS and FL rises again, that of CE and Ours does not (figure 4)"
    return Claim(
        claim, "seen in the figure", f"{name}, rise from the lowest: {words}; final fit ECE %: {errors}", verdict
    )


def states_of_one_loss(trace: Descent) -> tuple[int, int] | None:
    """Two epochs of one total loss: A on the way down and B at the end; None where the loss never rises again."""
    lowest = int(trace.total.argmin())
    earlier = np.flatnonzero(trace.total[: lowest + 1] <= trace.total[-1])
    if len(earlier) == 0 or lowest == len(trace.total) - 1:
        return None
    return int(earlier[0]), len(trace.total) - 1


def table_of_shares(network: Network, trace: Descent) -> Table:
    """Figure 3 (e): what the three worst classes and the others have of the sum of class losses at A and B."""
    states = states_of_one_loss(trace) or (0, len(trace.total) - 1)
    share = share_of_worst(trace)
    columns = ("epoch", "total loss", "std of class losses", "ECE %", "three worst classes", "other classes")
    rows = []
    for word, epoch in zip("AB", states, strict=True):
        cells = (str(epoch), f"{trace.total[epoch]:.3f}", f"{trace.spread[epoch]:.3f}", percent(trace.ece[epoch]))
        rows.append((word, (*cells, f"{percent(share[epoch])}%", f"{percent(1 - share[epoch])}%")))
    note = f"{network.name}, descent on the three worst classes: shares of the sum of class losses."
    return Table("Figure 3 (e): shares of the loss", columns, tuple(rows), note)


def _states_claims(network: Network, trace: Descent, drawn: Resamples) -> list[Claim]:
    """Figure 3: two epochs of one total loss, the one with evener class losses having the lower ECE on the fit rows."""
    claim = "Of two epochs with one total loss, the one with evener class losses has the lower ECE (figure 3)"
    states = states_of_one_loss(trace)
    if states is None:
        words = f"{network.name}: the total loss never returns to an earlier value"
        return [Claim(claim, "seen in the figure", words, None)]
    even, uneven = sorted(states, key=lambda epoch: trace.spread[epoch])
    errors = []
    for epoch in (even, uneven):
        scaled = network.val_logits.astype(np.float64) / trace.temperature[epoch]
        fitted = get("none").fit(scaled, network.val_labels)
        measured = measure(fitted, scaled, network.val_labels, drawn)
        errors.append(measured.named(f"{network.name}, epoch {epoch} of figure 3"))
    difference = errors[0].ece - errors[1].ece
    words = (
        f"{network.name}: total {trace.total[uneven]:.3f} and {trace.total[even]:.3f}, std {trace.spread[uneven]:.3f} "
        f"and {trace.spread[even]:.3f}, fit ECE {percent(trace.ece[uneven])}% and {percent(trace.ece[even])}%: "
        f"{signed(difference)}"
    )
    return [Claim(claim, "seen in the figure", words, below_zero(difference))]


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
