"""The one table of methods: names, aliases, registration by others, and what artifacts accept."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import calibrant as cal
from calibrant import calibrators
from calibrant.calibrators import registry
from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned, spec_of
from calibrant.calibrators.logistic import LogisticScaling
from calibrant.core.errors import InputError
from calibrant.shipping.artifact import from_bytes, to_bytes


class Shifted(cal.Calibrator):
    """Adds what it learned to the logits."""

    learns = {"shift_": Learned(("K",))}

    def __init__(self, factor=1.0):
        self.factor = factor

    def _fit(self, rows):
        self.shift_ = self.factor * rows.class_weight() / rows.total_weight

    def _map(self, xp, logits, learned):
        return logits + xp.astype(learned.shift_, logits.dtype)


class Undeclared(Shifted):
    learns = {}


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    registry._tasks.cache_clear()
    yield cal.register
    registry._tasks.cache_clear()


def rows(n=60, k=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, k)), rng.integers(0, k, n)


@pytest.mark.parametrize(
    ("name", "multiclass", "binary"),
    [
        ("none", 0, 0),
        ("ts", 1, 1),
        ("cts", 4, 2),
        ("vs", 8, 4),
        ("svs", 8, 4),
        ("ms", 20, 6),
        ("ets", 3, 3),
        ("pts", 61, 51),
        ("cws", 15, 15),
        ("bts", 15, 15),
        ("hb", 15, 15),
        ("spline", 6, 7),
        ("shape", 5, 7),
        ("sctl+vs", 8, 4),
        ("vs+top", 11, 7),
        ("platt", None, 2),
        ("beta", None, 3),
        ("quad", None, 3),
    ],
)
def test_parameters_are_the_free_numbers_that_were_learned(name, multiclass, binary):
    noise, labels = rows(400, 4)
    logits = 3 * noise + 2 * np.eye(4)[labels]
    if multiclass is not None:
        assert cal.get(name).fit(logits, labels).n_parameters_ == multiclass
    assert cal.get(name).fit(logits[:, 0], labels == 0).n_parameters_ == binary


def test_a_registered_method_is_found_compared_and_saved(registered):
    registered("shifted", Shifted, factor=2.0)
    registered("shifted", Shifted, factor=2.0)  # the same again changes nothing
    logits, labels = rows()
    assert cal.get("SHIFTED").factor == 2.0
    assert cal.get("shifted+top").calibrator.factor == 2.0
    assert "shifted" in registry.names()
    assert next(row for row in cal.methods() if row["name"] == "shifted")["class"] == "Shifted"
    table = cal.compare((logits, labels), (logits, labels), ["none", "shifted"], resamples=20)
    assert table.rows[1].error is None
    fitted = cal.get("shifted").fit(logits, labels)
    loaded = from_bytes(to_bytes(fitted)).calibrator
    assert type(loaded) is Shifted
    np.testing.assert_array_equal(loaded.transform(logits), fitted.transform(logits))


def test_only_registered_classes_are_saved_or_loaded(registered):
    logits, labels = rows()
    fitted = Shifted().fit(logits, labels)
    with pytest.raises(InputError, match="Shifted is not one of calibrant's calibrators"):
        to_bytes(fitted)
    registered("shifted", Shifted)
    content = to_bytes(fitted)
    del registry.METHODS["shifted"]
    with pytest.raises(InputError, match="'Shifted' is not one of calibrant's calibrators"):
        from_bytes(content)


def test_what_a_class_does_not_declare_is_refused(registered):
    with pytest.raises(InputError, match="Undeclared learned shift_, which its class does not declare: add learns"):
        Undeclared().fit(*rows())
    with pytest.raises(InputError, match=r"Undeclared fails on 240 random rows: .*which its class does not declare"):
        registered("undeclared", Undeclared)


class Unweighted(Shifted):
    """Ignores the weights of the rows."""

    def _fit(self, rows):
        self.shift_ = 2.0 * np.bincount(rows.labels, minlength=rows.n_classes) / rows.n


class Sequential(Shifted):
    """Learns from the first rows only."""

    def _fit(self, rows):
        self.shift_ = np.bincount(rows.labels[:9], minlength=rows.n_classes) * 1.0


class Unbounded(Shifted):
    def _map(self, xp, logits, learned):
        return logits * np.nan


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Unweighted, "Unweighted breaks a contract: a weight of 2 must be equivalent to repeating the row"),
        (Sequential, "Sequential breaks a contract: the order of the rows must not matter"),
        (Unbounded, "Unbounded fails on 240 random rows: InputError: predict_proba returned NaN"),
    ],
)
def test_registration_names_the_contract_that_a_class_breaks(registered, cls, words):
    with pytest.raises(InputError, match=words):
        registered("broken", cls)
    assert "broken" not in registry.METHODS


@pytest.mark.parametrize(
    ("name", "cls", "words"),
    [
        ("ts", Shifted, "'ts' is taken"),
        ("temperature", Shifted, "'temperature' is taken"),
        ("a+b", Shifted, "without '\\+'"),
        ("Upper", Shifted, "lower-case"),
        ("fine", int, "subclass of calibrant.Calibrator"),
        ("fine", Shifted(), "subclass of calibrant.Calibrator"),
        ("fine", type("Identity", (Shifted,), {}), "called Identity is registered already"),
    ],
)
def test_registrations_that_cannot_stand(registered, name, cls, words):
    with pytest.raises(InputError, match=words):
        registered(name, cls)


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("TS", "ts"),
        ("Temperature", "ts"),
        ("isotonic", "iso"),
        ("SCTL+Temperature", "sctl+ts"),
        ("Vector+TOP", "vs+top"),
    ],
)
def test_aliases_and_letter_case(given, means):
    assert repr(cal.get(given)) == repr(cal.get(means))


def test_an_unknown_name_is_answered_with_the_three_nearest():
    with pytest.raises(InputError, match="no method is called 'isotonci'; the nearest are isotonic, "):
        cal.get("isotonci")
    with pytest.raises(InputError, match="no method is called 'ts\\+topp'"):
        cal.get("ts+topp")
    assert len(registry.nearest("tss")) == 3


def test_entry_points_of_installed_packages_are_read(tmp_path):
    (tmp_path / "shelf.py").write_text(
        "import calibrant\nclass Shelf(calibrant.Identity):\n    pass\nclass Broken:\n    pass\n"
    )
    folder = tmp_path / "shelf-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[calibrant.calibrators]\nshelf = shelf:Shelf\nbroken = shelf:Broken\n")
    code = (
        "import sys, warnings; sys.path.insert(0, sys.argv[1])\n"
        "import calibrant as cal, numpy as np\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always'); one = cal.get('shelf')\n"
        "print(type(one).__name__, [str(w.message)[:28] for w in said])\n"
        "from calibrant.shipping.artifact import from_bytes, to_bytes\n"
        "print(type(from_bytes(to_bytes(one.fit(2 * np.eye(3), [0, 1, 2]))).calibrator).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["Shelf ['the calibrator broken (shelf']", "Shelf"], done.stderr


def test_the_table_prints_one_line_per_method():
    lines = str(cal.methods()).splitlines()
    assert len(lines) == len(registry.names(None)) + 1
    assert lines[0].split()[:2] == ["name", "class"]


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_facts_are_those_of_the_task():
    kept = {
        task: {row["name"] for row in cal.methods(task) if row["keeps_prediction"]}
        for task in (None, "multiclass", "binary")
    }
    assert kept["multiclass"] - kept["binary"] == {"spline", "iso", "hb", "shape"}
    assert kept["binary"] >= {"none", "ts", "ets", "sctl+ts", "ts+top"}
    assert kept[None] == kept["binary"]
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 2, 400)
    labels = (rng.random(400) < 1 / (1 + np.exp(0.5 - 0.7 * scores))).astype(int)
    for name in kept["binary"]:
        fitted = cal.get(name).fit(scores, labels)
        assert (fitted.predict(scores) == (scores > 0)).all(), name


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("name", registry.names())
def test_every_learned_name_is_declared(name):
    logits, labels = rows(80)
    fitted = cal.get(name).fit(logits, labels)
    learned = {key for key in vars(fitted) if key.endswith("_")}
    assert learned <= set(spec_of(type(fitted)))
    for key, rule in spec_of(type(fitted)).items():
        assert rule.kind == "record" or key in learned


WRAPPERS = {
    "sctl+": cal.ClassLossScaling,
    "+top": cal.TopLabelMap,
    "+shape": cal.ShapeScaling,
    "+keep": cal.KeptPrediction,
    "+shift": cal.LabelShift,
    "auto": lambda inner: cal.AutoCalibrator([inner], cv=2),
    "compare": None,
}


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_callers_object_is_never_fitted_in_place(wrapper):
    inner, data = cal.VectorScaling(penalty_bias=0.1), rows(90)
    if wrapper == "compare":
        cal.compare(data, data, [inner], resamples=10)
    else:
        WRAPPERS[wrapper](inner).fit(*data)
    assert vars(inner) == {"penalty_bias": 0.1, "seed": 0}


def base_classes():
    """All classes of the package that are bases of methods."""
    for module in pkgutil.iter_modules(calibrators.__path__, f"{calibrators.__name__}."):
        importlib.import_module(module.name)
    found, waiting = [], [cal.Calibrator]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.is_base and one.__module__.startswith(f"{calibrators.__name__}."):
            found.append(one)
    return found


@pytest.mark.parametrize("base", base_classes(), ids=lambda base: base.__name__)
@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_a_base_class_cannot_be_fitted(base, n_columns):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20, n_columns)).squeeze()
    made = base(cal.TemperatureScaling()) if "calibrator" in inspect.signature(base).parameters else base()
    with pytest.raises(TypeError, match=f"{base.__name__} is a base class: fit a method"):
        made.fit(scores, np.arange(20) % 2)


def test_no_method_is_a_base_and_all_other_classes_are_methods():
    methods = {method.load() for method in registry.METHODS.values() if not method.around_model}
    assert not any(one.is_base for one in methods)
    bases = set(base_classes())
    assert {cal.Calibrator, BinaryCalibrator, LogisticScaling} <= bases


@pytest.mark.parametrize("base", [cal.Calibrator, BinaryCalibrator])
def test_a_method_without_its_parts_names_them(base):
    class Empty(base):
        """Defines nothing."""

    part = "_fit" if base is cal.Calibrator else "_fit_binary"
    with pytest.raises(NotImplementedError, match=f"Empty defines no {part}"):
        Empty().fit(np.array([-1.0, 2.0, 0.5]), [0, 1, 1])
