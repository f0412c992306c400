"""Results fit one screen, and a notebook shows a table and a picture."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import calibrant as cal


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 900)
    return 4 * (rng.normal(size=(900, 4)) + 1.5 * np.eye(4)[labels]), labels


@pytest.fixture(scope="module")
def table(problem):
    logits, labels = problem
    return cal.compare((logits[:500], labels[:500]), (logits[500:], labels[500:]), ["none", "ts", "hb"], resamples=50)


@pytest.fixture(scope="module")
def measured(problem):
    return cal.measure(problem, resamples=50)


def test_text_fits_one_screen(table, measured):
    for text, words in (
        (repr(table), ("none", "ts", "best by", "measured on 400")),
        (repr(measured), ("ECE", "p-value")),
    ):
        lines = text.splitlines()
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 200
        for word in words:
            assert word in text


def test_html_holds_a_table_and_a_diagram(table, measured):
    for html, diagrams in ((table._repr_html_(), 2), (measured._repr_html_(), 1)):
        assert html.count("<svg") == diagrams
        assert html.count("<table>") == 1
        assert html.count("<div") == html.count("</div>")
        assert "nan" not in html


def test_names_from_users_cannot_write_html(problem):
    class Odd(cal.Identity):
        pass

    logits, labels = problem
    cal.register("<b>odd</b>", Odd)
    try:
        html = cal.compare((logits, labels), (logits + 0.1, labels), ["none", "<b>odd</b>"], resamples=20)._repr_html_()
    finally:
        from calibrant.calibrators import registry

        registry.METHODS.pop("<b>odd</b>", None)
    assert "<td><b>odd</b>" not in html.replace("<td><b>&lt;b&gt;odd", "")
    assert "&lt;b&gt;odd" in html


def test_frames_plots_and_cards(table, measured):
    assert list(table.to_frame().index) == ["none", "ts", "hb"]
    assert measured.to_frame().loc["ece", "value"] == measured.metrics["ece"].value
    assert table.plot().get_title() == table.best
    png = measured.plot()._repr_png_()
    assert png.startswith(b"\x89PNG")
    card = table.to_model_card()
    assert card.startswith("## Calibration")
    assert f"`{table.best}`" in card
    assert "scriptsize" in table.to_latex(intervals=True)
    assert "scriptsize" not in table.to_latex()


@pytest.mark.parametrize("intervals", [False, True])
def test_markdown_and_latex_say_the_same(table, intervals):
    def rows(text, start, split):
        found = [line for line in text.splitlines() if line.startswith(start) and split in line]
        return [[cell.strip(" |") for cell in line.strip("|").removesuffix(r"\\").split(split)] for line in found]

    plain = {r"\textbf{": "**", r"\underline{": "<u>"}
    markdown = rows(table.to_markdown(intervals=intervals), ("| none", "| ts", "| hb", "| **"), " | ")
    latex = rows(table.to_latex(intervals=intervals), ("none", "ts", "hb", r"\textbf"), " & ")
    assert len(markdown) == len(latex) == len(table.rows)
    for first, second in zip(markdown, latex, strict=True):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            numbers = [re.sub(r"[^0-9.]+", " ", text).split() for text in (one, other)]
            assert numbers[0] == numbers[1]
            for mark, sign in plain.items():
                assert (mark in other) == (sign in one)
            assert ("approx" in other) == ("≈" in one)
            assert ("ddagger" in other) == ("‡" in one)


def test_a_tie_is_not_a_second_place(table):
    for row in table.table().rows:
        assert not any(one.tie and one.second for one in row.cells.values())


def test_an_executed_notebook_shows_tables_and_pictures(tmp_path):
    cells = [
        "import numpy as np, calibrant as cal\n"
        "rng = np.random.default_rng(0); y = rng.integers(0, 3, 400)\n"
        "z = 3 * (rng.normal(size=(400, 3)) + np.eye(3)[y])",
        "cal.measure((z, y), resamples=20)",
        "cal.compare((z[:200], y[:200]), (z[200:], y[200:]), ['none', 'ts'], resamples=20)",
        "cal.plots.reliability_diagram(z, y, from_logits=True)",
        "halves = (z[:200], y[:200]), (z[200:], y[200:])\n"
        "both = cal.compare_models({'a': halves, 'b': halves[::-1]}, ['none', 'ts'], pair='none', resamples=20)\nboth",
        "both.comparisons['a'].plot()",
        "cal.diff(both.comparisons['a'], both.comparisons['b'])",
        "cal.get('ts').fit(z, y)",
    ]
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [
            {"cell_type": "code", "id": f"c{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": text}
            for i, text in enumerate(cells)
        ],
    }
    path = tmp_path / "look.ipynb"
    path.write_text(json.dumps(notebook))
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for one in json.loads(path.read_text())["cells"][1:]:
        kinds = {kind for output in one["outputs"] for kind in output.get("data", {})}
        assert kinds & {"text/html", "image/png"}, one["source"]


def test_the_dagger_is_explained_only_where_it_is_shown():
    from calibrant.evaluation.tables import Cell, Estimate, Row, Table, raised_words

    cells = {"nll": Cell("nll", Estimate(0.5, 0.4, 0.6)), "ece": Cell("ece", Estimate(0.01, 0.0, 0.01))}
    table = Table("method", {"nll": "NLL", "ece": "ECE"}, (Row("ts", cells),))
    assert "chance alone" in raised_words(table)
    assert not raised_words(table.pick(["nll"]))
