"""Verdicts of the studies and the counts of docs/papers.md, recomputed from raw results without `verdicts.py`."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "cts": "results.json",
    "weight_scaling": "results.json",
    "sctl": "results.json",
    "neural_clamping": "claims.json",
    "soft_objectives": "claims.json",
}


@cache
def read_claims(study):
    return json.loads((ROOT / "papers" / study / "results" / FILES[study]).read_text(encoding="utf-8"))["claims"]


@cache
def read_lines(study, file):
    return (ROOT / "papers" / study / "results" / file).read_text(encoding="utf-8").splitlines()


@cache
def read_measurements(study):
    with np.load(ROOT / "papers" / study / "results" / "measurements.npz") as file:
        draws = file["values"][:, None] + 1e-6 * file["deviations"]
        return dict(zip(file["names"].tolist(), zip(file["values"], draws, strict=True), strict=True))


def student_interval(values):
    """Mean and 95% interval of independent values."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return values.mean(), -inf, inf
    reach = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return values.mean(), values.mean() - reach, values.mean() + reach


def interval_of_networks(study, source):
    """Mean over networks with the wider of the bootstrap interval and, from three networks on, Student's."""
    measurements = read_measurements(study)
    pairs = [
        [sum(weight * measurements[name][place] for name, weight in part.items()) for place in (0, 1)]
        for part in source["networks"]
    ]
    values, draws = np.array([pair[0] for pair in pairs]), np.mean([pair[1] for pair in pairs], axis=0)
    found = (values.mean(), *np.quantile(draws, [0.025, 0.975]))
    if len(values) > 2:
        varied = student_interval(values)
        found = varied if varied[2] - varied[1] >= found[2] - found[1] else found
    return [source["scale"] * one for one in found]


def leaves(value, keys):
    """The numbers at a path; * in a key matches any text."""
    if not keys:
        return [value]
    return [one for key in value if fnmatchcase(key, keys[0]) for one in leaves(value[key], keys[1:])]


def sample(study, source):
    """The values of a metric, one per run."""
    if "networks" in source:
        stored = json.loads("\n".join(read_lines(study, source["file"])))
        return np.array([float(stored[name][source["method"]][1]) for name in source["networks"]])
    values = []
    for address in source["runs"]:
        file, _, line = address.rpartition(":")
        run = json.loads(read_lines(study, file)[int(line) - 1])
        gap = np.mean(leaves(run, source["path"].split("/")))
        values.append(gap - np.mean(leaves(run, source["minus"].split("/"))) if "minus" in source else gap)
    return source["scale"] * np.array(values)


def wilson_interval(count, total):
    found = stats.binomtest(count, total).proportion_ci(0.95, "wilson")
    return [100 * one for one in (count / total, found.low, found.high)]


def measured_values(study, source):
    """Sums of measurements by case, rounded as stored, minus the printed values."""
    measurements, places = read_measurements(study), source["places"]
    sums = {
        case: round(source["scale"] * sum(weight * measurements[name][0] for name, weight in part.items()), places)
        for case, part in source["measurements"].items()
    }
    return {case: round(value - source.get("printed", {}).get(case, 0), places) for case, value in sums.items()}


def seeds_interval(study, source):
    """Mean over runs, with the reaches of Student's interval over them and of resampled test rows combined."""
    file = json.loads("\n".join(read_lines(study, source["file"])))
    section = file[source["section"]] if source["section"] else file
    fixed = ("gamma", "penalty", "start", "rate")
    runs = [run for run in section["runs"] if all(run[key] == source[key] for key in fixed)]
    rows, column, other = interval(study, source["rows"]), source["column"], source["other"]
    joint = np.array([run["joint"][column] for run in runs])
    if other == "output_only":
        rival = np.array([run["output_only"][column] for run in runs])
    elif other == "first seed":
        rival = joint[0] - rows[0] / source["scale"]
    else:
        rival = file[other][column] if other in file else read_measurements(study)[other][0]
    gaps = source["scale"] * (joint - rival)
    spread = student_interval(gaps) if len(gaps) > 1 else (gaps[0],) * 3
    low, high = (np.hypot(spread[end] - spread[0], rows[end] - rows[0]) for end in (1, 2))
    return spread[0], spread[0] - low, spread[0] + high


def bin_interval(study, source):
    """Gap of a bin over runs that share their rows, corrected for the number of bins."""
    runs = [address.rpartition(":") for address in source["runs"]]
    tables = [json.loads(read_lines(study, file)[int(line) - 1]) for file, _, line in runs]
    for key in source["path"].split("/"):
        tables = [table[key] for table in tables]
    count, confidence, accuracy = (
        np.array([table[key] for table in tables]) for key in ("count", "confidence", "accuracy")
    )
    seen = count.sum(axis=0) > 0
    mean = [np.average(part[:, seen], axis=0, weights=count[:, seen])[source["bin"]] for part in (confidence, accuracy)]
    error = np.sqrt(mean[0] * (1 - mean[0]) / count.mean(axis=0)[seen][source["bin"]])
    reach = stats.norm.isf(0.025 / seen.sum()) * error
    return [source["scale"] * (mean[0] - mean[1] + step) for step in (0, -reach, reach)]


def rises_of_entropy(study, source):
    """Differences of entropy between successive γ."""
    file = json.loads("\n".join(read_lines(study, source["file"])))
    scores = (file[source["section"]] if source["section"] else file)["scores"]
    points = sorted((one["gamma"], one["entropy"]) for one in scores if one["penalty"] == source["penalty"])
    return {f"γ = {after[0]:g}": after[1] - before[1] for before, after in pairwise(points)}


def interval(study, source):
    """Value and ends of the interval that a claim's source describes."""
    kind = source["interval"]
    if kind == "networks":
        return interval_of_networks(study, source)
    if kind == "student":
        return student_interval(source["values"])
    if kind == "seeds":
        return seeds_interval(study, source)
    if kind == "bins":
        return bin_interval(study, source)
    if kind == "stored":
        value = json.loads("\n".join(read_lines(study, source["file"])))
        for key in source["path"]:
            value = value[key]
        return [source["scale"] * one for one in value]
    if kind == "variances":
        ratio = np.var(source["first"], ddof=1) / np.var(source["second"], ddof=1)
        degrees = len(source["first"]) - 1, len(source["second"]) - 1
        return np.log10([ratio, *(ratio / stats.f.ppf(level, *degrees) for level in (0.975, 0.025))])
    if kind == "wilson" and "pairs" in source:
        wins = [sample(study, second).mean() < sample(study, first).mean() for first, second in source["pairs"]]
        return wilson_interval(sum(wins), len(wins))
    if kind == "wilson":
        if "measurements" in source:
            assert source["values"] == measured_values(study, source)
        values = np.array(list(source["values"].values()))
        return wilson_interval(int(((values >= source["least"]) & (values <= source["most"])).sum()), len(values))
    first = sample(study, source["first"])
    if kind == "single":
        return student_interval(first)
    second = sample(study, source["second"])
    if kind == "paired":
        return student_interval(second - first)
    assert kind == "welch"
    if min(len(first), len(second)) < 2:
        return second.mean() - first.mean(), -inf, inf
    found = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    return second.mean() - first.mean(), found.low, found.high


def judge(study, one):
    """The verdict of a claim from its raw values, the ends of an interval rounded half to even."""
    judged = one["judged"]
    if judged is None:
        return "not decided"
    if "values" in judged:
        source = judged["source"]
        if source:
            raw = measured_values(study, source) if "measurements" in source else rises_of_entropy(study, source)
            assert judged["values"] == pytest.approx(raw, abs=1e-6), one
        least, most = (-inf if judged["least"] is None else judged["least"], judged["most"])
        within = [least <= value <= (inf if most is None else most) for value in judged["values"].values()]
        return "holds" if all(within) else "does not hold"
    value, low, high = interval(study, judged["source"])
    for name, made in (("value", value), ("low", low), ("high", high)):
        # a last digit may differ if a value is at the middle of two printed ones
        assert judged[name] is None or made == pytest.approx(judged[name], abs=0.51 * 10.0 ** -judged["places"]), one
    if not isfinite(low) or not isfinite(high):
        return "not decided"
    step, margin = Decimal(1).scaleb(-judged["places"]), Decimal(judged["margin"])
    ends = [Decimal(float(end)).quantize(step, ROUND_HALF_EVEN) for end in (low, high)]
    sides = {"below": ("holds", "does not hold"), "above": ("does not hold", "holds")}[judged["side"]]
    return sides[0] if ends[1] < margin else (sides[1] if ends[0] > margin else "not decided")


def p_value(judged):
    """Two-sided, from the end of the interval that points to the margin."""
    if judged["low"] is None or judged["high"] is None:
        return 1.0
    away = judged["value"] - judged["margin"]
    reach = abs(judged["value"] - (judged["low"] if away > 0 else judged["high"]))
    law = stats.t(judged["df"]) if judged["df"] else stats.norm()
    return float(2 * law.sf(law.ppf(0.975) * (abs(away) / reach if reach else inf * (away != 0) or 0)))


def after_holm(claims, verdicts):
    """Step down through the sorted p-values of the paper's claims with intervals."""
    tested = [
        (p_value(one["judged"]), place)
        for place, one in enumerate(claims)
        if one["kind"] == "paper" and one["judged"] and "values" not in one["judged"]
    ]
    corrected, going = ["counted"] * len(claims), True
    for left, (p, place) in zip(range(len(tested), 0, -1), sorted(tested), strict=True):
        going = going and p * left <= 0.05
        corrected[place] = verdicts[place] if going else "not decided"
    return corrected


@pytest.mark.parametrize("study", FILES)
def test_verdicts_of_a_report_follow_from_its_raw_results(study):
    claims = read_claims(study)
    text = (ROOT / "papers" / study / "README.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- claims -->")[2].partition("<!-- end -->")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    shown = {(row[0], row[2]): row for row in rows if row[0] not in ("claim", "---")}
    verdicts = [judge(study, one) for one in claims]
    corrected = after_holm(claims, verdicts)
    assert len(shown) == len(claims)
    for one, verdict, after in zip(claims, verdicts, corrected, strict=True):
        row = shown[one["claim"], one["ours"]]
        assert row[3].partition(" (")[0] == verdict == one["holds"], one["claim"]
        assert (one["kind"] == "paper") == (len(row) == 5)
        assert len(row) == 4 or row[4] == after, one["claim"]
        assert one["judged"] or "not" in one["ours"] or "never" in one["ours"]
    papers = [place for place, one in enumerate(claims) if one["kind"] == "paper"]
    count, count_after = Counter(verdicts[place] for place in papers), Counter(corrected[place] for place in papers)
    cells = [count["holds"], count["does not hold"], count["not decided"]]
    cells += [count_after["holds"], count_after["does not hold"]]
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    row = f"](../papers/{study}/README.md#claims-of-the-paper) | " + " | ".join(map(str, cells)) + " |"
    assert row in page, f"docs/papers.md does not count {cells} for {study}"
    known = [
        line.strip("| ").split(" | ")[1:]
        for line in page.splitlines()
        if line.startswith(f"| {study.replace('_', ' ')} | ")
    ]
    known = [row for row in known if len(row) == 5]
    assert len(known) >= 5, f"docs/papers.md does not list the main claims of {study}"
    for row in known:
        assert row == shown[row[0], row[2]]


def test_a_changed_raw_value_changes_the_verdict():
    """The recomputation reads the raw files: with other runs in the place of one row its verdict is another."""
    claims = read_claims("soft_objectives")
    claim = next(one for one in claims if one["claim"] == "Soft ECE improves on focal alone")
    assert judge("soft_objectives", claim) == "holds"
    source = claim["judged"]["source"]
    swapped = {**source, "first": source["second"], "second": source["first"]}
    with pytest.raises(AssertionError):
        judge("soft_objectives", {**claim, "judged": {**claim["judged"], "source": swapped}})


@pytest.mark.parametrize("study", FILES)
def test_names_of_claims_are_unique_and_readable_without_their_neighbors(study):
    names = [one["claim"] for one in read_claims(study)]
    assert len(set(names)) == len(names)
    referring = re.compile(
        r"…|\b(does|do|did) (too|so)\b|\bso does\b|\b(it|this|that) is\b|\bmakes it\b|\balso\b|^and\b"
    )
    assert [name for name in names if referring.search(name)] == []


def test_shares_are_judged_where_a_paper_claims_a_share():
    claims = {one["claim"]: one["judged"] for study in FILES for one in read_claims(study) if one["kind"] == "paper"}
    shares = {name: judged for name, judged in claims.items() if re.search(r"almost all|more than half|\bmost\b", name)}
    assert len(shares) >= 5
    for name, judged in shares.items():
        assert judged["source"]["interval"] == "wilson", name
        assert judged["margin"] == (89 if "almost all" in name else 50), name


@pytest.mark.parametrize(
    "word",
    ["SB-ECE", "S-AvUC", "TS-SB-ECE", "U-CTS", "CWS", "BTS", "SCTL", "AvUC-GS", "MS-ODIR", "adaECE", "TS-HB-ECE"],
)
def test_the_words_of_the_papers_lead_to_a_function(word):
    lines = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert any(word in row[0] and len(row) == 2 and "](" in row[1] and "`" in row[1] for row in rows)


def test_the_page_of_papers_leads_to_the_losses_and_a_table_of_each_paper():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| Karandikar"))
    assert "(training.md)" in row
    section = page.partition("## A table of each paper in fifteen lines")[2].partition("\n## ")[0]
    tables = section.split("\n### ")[1:]
    assert len(tables) == len(FILES)
    for table in tables:
        code = table.partition("```python\n")[2].partition("```")[0].splitlines()
        lines = [line for line in code if line.strip() and not line.startswith(("import ", "from "))]
        assert 0 < len(lines) <= 15, table.splitlines()[0]
