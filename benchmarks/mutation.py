"""Mutation testing: change the library in one place and see whether a test notices it.

    python benchmarks/mutation.py map --work DIR [--seconds 600] [--workers 1] [tests/core ...]
    python benchmarks/mutation.py run --work DIR --seed 1 [--mutants 300] [--workers 2] [--part 1/2] [--seconds 600]
    python benchmarks/mutation.py report --work DIR [RESULTS.jsonl ...] [--classes classes.json]

`map` runs each test file in an instrumented copy of the repository and writes to DIR/map.sqlite which test executes
which statement. `run` draws mutants, an equal number per operator, applies each to a copy of the repository and runs
the tests that execute the changed statement, until one fails. A test counts only if it passes without the change.
Results are appended to DIR/results.jsonl; a later call with the same seed continues. `report` counts noticed, survived
and timed out mutants and writes the diff of each survivor to DIR/survivors.md. The checkout is only read.

`classes.json` maps the id of a survivor to its class: equivalent, speed, wording or hole. The first three are excluded
from the rate of noticed mutants.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import itertools
import json
import mmap
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IGNORED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", "site", "dist", "out", "build", "*.egg-info"
)
NOT_TESTS = ("tests/docs", "tests/papers", "tests/benchmarks", "tests/engines/test_dask", "tests/contracts/test_engin")
"""Tests of documents, and tests that start a cluster, which fails in a forked process."""
NOT_MUTATED = ("kernels/torch/triton_", "kernels/torch/columns.py", "engines/dask.py", "cli/demo.py")
"""Code for GPUs and clusters, and a demonstration."""
PRELOADED = ("numpy", "scipy.stats", "scipy.optimize", "pandas", "sklearn.linear_model", "numba", "torch", "hypothesis")
FILE_SECONDS = 600
MEMORY_LIMIT = 12 * 2**30
FIRST_TESTS, FIRST_PER_FILE = 30, 4
CLASSES = ("equivalent", "speed", "wording", "hole")

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
EXTREMES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "nanmin": "nanmax", "amin": "amax", "fmin": "fmax"}
EXTREMES |= {other: name for name, other in EXTREMES.items()}


# --- statements and their keys ---------------------------------------------------------------------------------------


def walk_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Yield the qualified name and node of each function, and whether it is compiled."""
    compiled_names = set(re.findall(r"njit\((?:\w+\.)?(\w+)\)", ast.unparse(tree))) | {"slopes_with_one_more"}

    def walk(node: ast.AST, prefix: str, compiled: bool) -> Iterator:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{getattr(child, 'name', '')}"
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = " ".join(map(ast.unparse, child.decorator_list))
                is_compiled = compiled or child.name in compiled_names
                is_compiled |= bool(re.search(r"njit|\bfast\b|\bexact\b|compiled_form|\bjit\b", decorators))
                yield name, child, is_compiled
                yield from walk(child, f"{name}.", is_compiled)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{name}.", compiled)
            else:
                yield from walk(child, prefix, compiled)

    yield from walk(tree, "", False)


def statement_blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a function, without those of nested functions and classes."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(function, field, None)
        if isinstance(block, list) and block:
            yield block
            for statement in block:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from statement_blocks(statement)
    for part in [*getattr(function, "handlers", []), *getattr(function, "cases", [])]:
        yield from statement_blocks(part)


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def statement_keys(path: str, source: str, tree: ast.Module) -> dict[ast.stmt, str]:
    """Name the statements of functions by function, text and occurrence: independent of line numbers."""
    lines, keys, seen = source.splitlines(), {}, Counter()
    for name, function, compiled in walk_functions(tree):
        if not compiled:
            for block in statement_blocks(function):
                for statement in block:
                    if not is_docstring(statement):
                        text = f"{path}|{name}|{lines[statement.lineno - 1].strip()}"
                        keys[statement] = f"{text}|{seen[text]}"
                        seen[text] += 1
    return keys


def source_files(root: Path) -> dict[str, str]:
    package = root / "src"
    return {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}


# --- map: which test executes which statement ------------------------------------------------------------------------


def instrument(root: Path, place_of: dict[str, int], marks: Path) -> None:
    """Rewrite the copy so that each statement of a function sets a byte of a file that all processes share."""
    for path, source in source_files(root).items():
        tree = ast.parse(source)
        keys = statement_keys(path, source, tree)
        for _, function, _ in walk_functions(tree):
            for block in list(statement_blocks(function)):
                block[:] = itertools.chain.from_iterable(
                    (ast.parse(f"_mark_[{place_of[keys[one]]}] = 1").body[0], one) if one in keys else (one,)
                    for one in block
                )
        first = next(
            (
                place
                for place, one in enumerate(tree.body)
                if not is_docstring(one) and getattr(one, "module", "") != "__future__"
            ),
            len(tree.body),
        )
        if any(keys):
            tree.body.insert(first, ast.parse("from calibrant_marks import marks as _mark_").body[0])
        text = ast.unparse(ast.fix_missing_locations(tree))
        if path.endswith("compiled/cached.py"):  # a compiled function marks nothing: its caller does
            call = "return loop("
            assert call in text
            text = text.replace(call, f"_mark_[_places_[function.__module__, function.__name__]] = 1; {call}")
            text = text.replace("import marks as", "import places as _places_, marks as")
        (root / "src" / path).write_text(text)
    places = {
        (key.split("|")[0].removesuffix(".py").replace("/", "."), key.split("|")[1]): place
        for key, place in place_of.items()
        if "|<call>|" in key
    }
    (root / "src" / "calibrant_marks.py").write_text(
        f"import mmap, os\nplaces = {places!r}\nmarks = mmap.mmap(os.open({str(marks)!r}, os.O_RDWR), 0)\n"
    )


class MapRecorder:
    """Record the statements that each test executes. Shared fixtures are built anew per test unless this is slow."""

    def __init__(self, marks: mmap.mmap) -> None:
        self.marks, self.results = marks, {}
        self.shared: dict[str, set[int]] = {}
        self.rebuilt: list = []

    def take(self) -> set[int]:
        found = {place for place, mark in enumerate(self.marks[:]) if mark}
        self.marks[:] = bytes(len(self.marks))
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope == "function" or fixturedef.func.__module__.startswith("_pytest"):
            return (yield)
        before, start = self.take(), time.perf_counter()
        try:
            return (yield)
        finally:
            found = self.take()
            if time.perf_counter() - start < 0.3:
                self.rebuilt.append((fixturedef, request))
            else:
                self.shared.setdefault(fixturedef.argname, set()).update(found)
            for place in before | found:
                self.marks[place] = 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.take()
        start = time.perf_counter()
        result = yield
        found = self.take().union(*(self.shared.get(name, ()) for name in item.fixturenames))
        self.results[item.nodeid] = (time.perf_counter() - start, found)
        while self.rebuilt:
            fixturedef, request = self.rebuilt.pop()
            fixturedef.finish(request)
        return result


class Map:
    """The file of statements and tests."""

    def __init__(self, path: Path) -> None:
        self.base = sqlite3.connect(path, timeout=60)
        self.base.executescript(
            "create table if not exists places(place integer primary key, key text unique);"
            "create table if not exists files(file text primary key, digest text);"
            "create table if not exists tests(test text primary key, file text, seconds real, places blob);"
        )

    def add_places(self, keys: list[str]) -> dict[str, int]:
        with self.base:
            self.base.executemany("insert or ignore into places(key) values (?)", [(key,) for key in keys])
        return {key: place for place, key in self.base.execute("select place, key from places")}

    def known_files(self) -> dict[str, str]:
        return dict(self.base.execute("select file, digest from files"))

    def store(self, file: str, digest: str, results: dict[str, tuple[float, set[int]]]) -> None:
        with self.base:
            self.base.execute("delete from tests where file = ?", (file,))
            for test, (seconds, found) in results.items():
                packed = zlib.compress(json.dumps(sorted(found)).encode())
                self.base.execute("insert or replace into tests values (?, ?, ?, ?)", (test, file, seconds, packed))
            self.base.execute("insert or replace into files values (?, ?)", (file, digest))

    def load(self) -> tuple[dict[str, set[str]], dict[str, float], dict[str, int]]:
        """Return the tests per statement, the seconds per test, and the number of statements per test."""
        keys = dict(self.base.execute("select place, key from places"))
        tests_of, seconds, sizes = defaultdict(set), {}, {}
        for test, took, packed in self.base.execute("select test, seconds, places from tests"):
            found = json.loads(zlib.decompress(packed))
            seconds[test], sizes[test] = took, len(found)
            for place in found:
                tests_of[keys[place]].add(test)
        return tests_of, seconds, sizes


def copy_repository(target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT, target, ignore=IGNORED, symlinks=True)
    shared = ROOT.parent / "shared"
    if shared.exists() and not (target.parent / "shared").exists():
        (target.parent / "shared").symlink_to(shared.resolve())
    return target


def is_in_checkout(folder: str) -> bool:
    return Path(folder or ".").resolve().is_relative_to(ROOT)


def enter(copy: Path) -> None:
    """Make this process and its children work in the copy."""
    os.chdir(copy)
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and not is_in_checkout(one)]
    os.environ.update(PYTHONPATH=os.pathsep.join([str(copy / "src"), *others]))
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", PYTHONHASHSEED="0")
    sys.path[:] = [str(copy / "src"), *(one for one in sys.path if not is_in_checkout(one))]


def in_child(work, seconds: float, log: Path, still_fine=lambda: True) -> bool:
    """Run a function in a forked process of its group; False if it was killed for taking too long."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    end = time.monotonic() + seconds
    finished = False
    while not (finished := os.waitpid(pid, os.WNOHANG)[0] == pid) and time.monotonic() < end and still_fine():
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not finished:
        os.waitpid(pid, 0)
    return finished


def pytest_arguments(temporary: Path) -> list[str]:
    without = [word for name in ("cacheprovider", "xdist", "schemathesis") for word in ("-p", f"no:{name}")]
    return ["--disable-warnings", f"--basetemp={temporary}", *without]


def test_files(wanted: list[str]) -> list[str]:
    every = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    return [
        one
        for one in every
        if not one.startswith(NOT_TESTS) and (not wanted or one.startswith(tuple(part.rstrip("/") for part in wanted)))
    ]


def build_map(options: argparse.Namespace) -> None:
    options.work.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    database = Map(options.work / "map.sqlite")
    sources = source_files(ROOT)
    keys = [key for path, text in sources.items() for key in statement_keys(path, text, ast.parse(text)).values()]
    for path, text in sources.items():
        if "kernels/compiled/" in path:
            keys += [f"{path}|{name}|<call>|0" for name, _, compiled in walk_functions(ast.parse(text)) if compiled]
    place_of = database.add_places(keys)
    known = database.known_files()
    digests = {one: hashlib.sha256((ROOT / one).read_bytes()).hexdigest() for one in test_files(options.tests)}
    missing = [one for one, digest in digests.items() if known.get(one) != digest]
    print(f"{len(digests)} test files, {len(missing)} to map, {len(keys):,} statements", flush=True)

    def work(number: int, taken) -> None:
        copy = copy_repository(options.work / "map" / str(number))
        marks_file = copy.parent / f"marks{number}"
        marks_file.write_bytes(bytes(max(place_of.values()) + 1))
        instrument(copy, place_of, marks_file)
        enter(copy)
        marks = mmap.mmap(os.open(marks_file, os.O_RDWR), 0)
        preload()
        while (place := take_next(taken)) < len(missing):
            file, start = missing[place], time.monotonic()
            if start > deadline:
                return

            def record(file=file) -> None:
                recorder = MapRecorder(marks)
                code = pytest.main([file, *pytest_arguments(copy.parent / f"tmp{number}")], plugins=[recorder])
                assert code in {0, 1, 5}
                Map(options.work / "map.sqlite").store(file, digests[file], recorder.results)
                print(file)

            log = copy.parent / f"log{number}"
            done = in_child(record, min(deadline + 60 - start, FILE_SECONDS), log)
            last = log.read_text(errors="replace").strip().splitlines()[-2:]
            print(f"{time.monotonic() - start:6.1f} s {'' if done else '(stopped) '}{' · '.join(last)}", flush=True)

    in_workers(options.workers, work)


def preload() -> None:
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"without {name}", flush=True)


def take_next(taken) -> int:
    with taken.get_lock():
        taken.value += 1
        return taken.value - 1


def in_workers(count: int, work) -> None:
    context = multiprocessing.get_context("fork")
    taken = context.Value("i", 0)
    processes = [context.Process(target=work, args=(number, taken)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


# --- mutants ---------------------------------------------------------------------------------------------------------


@dataclass
class Mutant:
    path: str
    operator: str
    line: int
    before: str
    after: str
    span: tuple[int, int]
    key: str | None
    function: str
    names: tuple[str, ...]

    @property
    def id(self) -> str:
        text = f"{self.path}|{self.key}|{self.function}|{self.operator}|{self.before}|{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def apply(self, source: str) -> str:
        text = source.encode()
        return (text[: self.span[0]] + self.after.encode() + text[self.span[1] :]).decode()

    def diff(self, source: str) -> str:
        changed = difflib.unified_diff(
            source.splitlines(), self.apply(source).splitlines(), self.path, self.path, lineterm="", n=3
        )
        return "\n".join(changed)


def expression_mutants(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield operator, replaced node and replacement text."""

    def changed(operator: str, original: ast.AST, **fields) -> tuple[str, ast.AST, str]:
        values = {name: getattr(original, name) for name in original._fields}
        return operator, original, f"({ast.unparse(type(original)(**(values | fields)))})"

    match node:
        case ast.Compare(ops=ops):
            for place, one in enumerate(ops):
                for other in COMPARISONS[type(one)]:
                    yield changed("comparison", node, ops=[*ops[:place], other(), *ops[place + 1 :]])
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, str(value + 1)
            if value > 0:
                yield "constant", node, str(value - 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, repr(2 * value if value else 1.0)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not any(isinstance(one, ast.JoinedStr | ast.List | ast.Tuple) or is_text(one) for one in (left, right)):
                yield changed("arithmetic", node, op=ARITHMETIC[type(op)]())
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "arithmetic", node, f"({ast.unparse(operand)})"
        case ast.BoolOp(op=op):
            yield changed("and/or", node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.keyword(arg="axis" | "dim", value=value) if ast.unparse(value) in {"0", "1", "-1"}:
            yield "axis", value, "1" if ast.unparse(value) == "0" else "0"
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "negated condition", test, f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=ifs):
            for test in ifs:
                yield "negated condition", test, f"(not ({ast.unparse(test)}))"
        case ast.Name(id=name) if name in {"min", "max"}:
            yield "min/max", node, EXTREMES[name]
        case ast.Call(func=ast.Attribute(attr=name, value=value) as function) if name in EXTREMES:
            yield "min/max", function, f"{ast.unparse(value)}.{EXTREMES[name]}"
        case ast.Call(func=function, args=[only]) if ast.unparse(function) in {"abs", "np.abs", "torch.abs", "np.fabs"}:
            yield "abs", node, f"({ast.unparse(only)})"
        case ast.Call(func=ast.Attribute(attr="abs", value=value), args=[]):
            yield "abs", node, f"({ast.unparse(value)})"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def statement_mutants(node: ast.stmt, assigned: set[str]) -> Iterator[tuple[str, ast.AST, str]]:
    match node:
        case ast.Raise():
            yield "removed raise", node, "pass"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "dropped statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped statement", node, "pass"
        case ast.Assign(targets=[ast.Name(id=name)]) if name in assigned:
            yield "dropped statement", node, "pass"


def module_mutants(path: str, source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    keys = statement_keys(path, source, tree)
    starts = [0, *itertools.accumulate(len(line) for line in source.encode().splitlines(keepends=True))]

    def visit(node: ast.AST, key: str | None, function: str, names: tuple[str, ...], assigned: set[str]) -> Iterator:
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or field in {"annotation", "returns", "decorator_list"}:
                    continue
                if isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
                    continue
                inner = (key, function, names, assigned)
                if isinstance(child, ast.stmt):
                    targets = [ast.unparse(one) for one in getattr(child, "targets", [])]
                    targets += [ast.unparse(child.target)] if hasattr(child, "target") else []
                    if "__all__" in targets or ast.unparse(getattr(child, "test", child)) == "TYPE_CHECKING":
                        continue
                    inner = (keys.get(child), function, tuple(targets) if not function else (), assigned)
                    if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        known = {one.arg for one in ast.walk(getattr(child, "args", child)) if isinstance(one, ast.arg)}
                        inner = (None, f"{function}.{child.name}".strip("."), (), known)
                    for operator, target, text in statement_mutants(child, assigned):
                        yield make(operator, target, text, *inner[:3])
                    assigned.update(targets)
                for operator, target, text in expression_mutants(child):
                    yield make(operator, target, text, *inner[:3])
                if not isinstance(child, ast.Raise) and not is_message(child):
                    yield from visit(child, *inner)

    def make(operator: str, node: ast.AST, text: str, key: str | None, function: str, names: tuple[str, ...]) -> Mutant:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[start:end].decode()
        return Mutant(path, operator, node.lineno, before, text, (start, end), key, function, names)

    return visit(tree, None, "", (), set())


def is_change(mutant: Mutant, source: str) -> bool:
    """Return whether the mutated file is valid and differs from the original."""
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(re.search(r"warn|\blog|InputError|Error$", ast.unparse(node.func)))


def draw_mutants(seed: int, count: int, root: Path = ROOT) -> list[Mutant]:
    """Draw mutants without replacement, from each operator in turn."""
    sources = source_files(root)
    by_operator: dict[str, dict[str, Mutant]] = defaultdict(dict)
    for path, source in sources.items():
        if not path.removeprefix("calibrant/").startswith(NOT_MUTATED):
            for mutant in module_mutants(path, source):
                by_operator[mutant.operator].setdefault(mutant.id, mutant)
    generator = random.Random(seed)
    shuffled = [generator.sample(list(some.values()), len(some)) for _, some in sorted(by_operator.items())]
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*shuffled))
    return list(itertools.islice((one for one in rounds if one and is_change(one, sources[one.path])), count))


# --- run: which mutant is noticed ------------------------------------------------------------------------------------


class TestChoice:
    """The tests that execute a mutated statement, quick and specific ones first."""

    def __init__(self, database: Map) -> None:
        self.tests_of, self.seconds, self.sizes = database.load()
        self.of_function, self.of_file, self.of_folder = (defaultdict(set) for _ in range(3))
        for key, tests in self.tests_of.items():
            path, function, *_ = key.split("|")
            for end in range(function.count(".") + 1):
                self.of_function[path, ".".join(function.split(".")[: end + 1])] |= tests
            self.of_file[path] |= tests
            self.of_folder[str(Path(path).parent)] |= tests

    def choose(self, mutant: Mutant, source: str) -> list[str]:
        tests = self.tests_of.get(mutant.key) if mutant.key else None
        if tests is None and mutant.key and mutant.key in self.known_keys:
            return []
        if tests is None and mutant.function:
            tests = self.of_function.get((mutant.path, mutant.function))
        if tests is None and mutant.names:
            users = [
                name
                for name, function, _ in walk_functions(ast.parse(source))
                if any(isinstance(one, ast.Name) and one.id in mutant.names for one in ast.walk(function))
            ]
            tests = set().union(*(self.of_function.get((mutant.path, name), set()) for name in users))
        tests = tests or self.of_file.get(mutant.path) or self.of_folder.get(str(Path(mutant.path).parent), set())
        folder = mutant.path.split("/")[1]

        def rank(test: str) -> float:
            return (0.05 + self.seconds[test]) * (100 + self.sizes[test]) * (0.3 if f"tests/{folder}/" in test else 1)

        return sorted(tests, key=lambda test: (rank(test), test))

    known_keys: set[str] = frozenset()


class Runner:
    """Select tests, stop at the first failure or when the time is up, and write each event to a file."""

    def __init__(self, tests: list[str], events: Path, budget: float) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.file = events.open("a", buffering=1)
        self.end = time.monotonic() + budget

    def write(self, kind: str, text: str) -> None:
        self.file.write(json.dumps([kind, text, time.time()]) + "\n")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.write("failed", report.nodeid)

    def pytest_collection_modifyitems(self, session, items) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self.order), key=lambda one: self.order[one.nodeid])

    def pytest_runtest_logstart(self, nodeid) -> None:
        self.write("start", nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if time.monotonic() > self.end:
            item.session.shouldstop = "time is up"
            self.write("stopped", item.nodeid)
            return True
        return None

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not hasattr(report, "wasxfail"):
            self.write("failed", report.nodeid)
            pytest.exit("noticed", returncode=1)
        elif report.when == "call" or report.skipped:
            self.write("skipped" if report.skipped else "passed", report.nodeid)


class Worker:
    def __init__(self, number: int, options: argparse.Namespace, deadline: float) -> None:
        self.options, self.deadline = options, deadline
        self.copy = copy_repository(options.work / "run" / str(number))
        self.base = self.copy.parent
        self.number = number
        self.fine: set[str] = set()
        self.broken: set[str] = set()
        self.changes = 0
        enter(self.copy)
        preload()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))

    def pytest(self, tests: list[str], budget: float, patience: float) -> list[tuple[str, str, float]]:
        """Run tests in a child; the events, with "hung" at the end if a test outlasted its time."""
        events = self.base / f"events{self.number}"
        events.write_text("")
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        files = [one for one in files if (self.copy / one).exists()]

        def work() -> None:
            arguments = pytest_arguments(self.base / f"tmp{self.number}")
            pytest.main(
                [*files, "--continue-on-collection-errors", *arguments], plugins=[Runner(tests, events, budget)]
            )

        def still_fine() -> bool:
            return time.time() - events.stat().st_mtime < patience and time.monotonic() < self.deadline

        finished = not files or in_child(work, 10 * budget + 120, self.base / f"log{self.number}", still_fine)
        found = [json.loads(line) for line in events.read_text().splitlines() if line.endswith("]")]
        if not finished:
            starts = [one for one in found if one[0] == "start"]
            found.append(["hung", starts[-1][1] if starts else files[0], time.time()])
        return found

    def imports(self, module: str) -> bool:
        flag = self.base / f"imported{self.number}"
        flag.unlink(missing_ok=True)

        def work() -> None:
            importlib.import_module(module)
            flag.touch()

        in_child(work, 60, self.base / f"log{self.number}")
        return flag.exists()

    def is_fine(self, test: str, patience: float) -> bool:
        """Return whether a test, or the collection of a file, passes in the unchanged copy."""
        if test not in self.fine | self.broken:
            tests = [test] if "::" in test else [f"{test}::"]
            events = self.pytest(tests, 120, 3 * patience)
            bad = any(kind in {"failed", "hung"} for kind, *_ in events)
            ran = "::" not in test or any(kind == "passed" for kind, *_ in events)
            (self.broken if bad or not ran else self.fine).add(test)
        return test in self.fine

    def judge(self, mutant: Mutant, choice: TestChoice) -> dict | None:
        """Run the tests of one mutant; None if the deadline passed."""
        target = self.copy / "src" / mutant.path
        source = target.read_text()
        tests = choice.choose(mutant, source)
        result = {**asdict(mutant), "id": mutant.id, "diff": mutant.diff(source), "tests": len(tests)}
        start = time.monotonic()
        limit = self.options.limit
        patience = 25.0 + (90 if "kernels/compiled" in mutant.path else 0)
        module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        passed = skipped = 0
        status, by = "survived" if tests else "no test", ""
        stamp = target.stat().st_mtime

        def apply(text: str, when: float) -> None:
            target.write_text(text)
            os.utime(target, (when, when))

        try:
            self.changes += 1
            changed, when = mutant.apply(source), stamp + 10 + self.changes
            apply(changed, when)
            if not self.imports(module):
                apply(source, stamp)
                possible = self.imports(module)
                status, by, tests = ("noticed", "import", []) if possible else ("unavailable", "", [])
            while tests and time.monotonic() - start < limit:
                apply(changed, when)
                tests = [one for one in tests if one not in self.broken]
                now = self.first_tests(tests)
                slowest = max((choice.seconds[one] for one in now), default=0)
                wait = patience + 10 * slowest
                events = self.pytest(now, limit - (time.monotonic() - start), wait)
                if time.monotonic() > self.deadline:
                    return None
                ended = {test for kind, test, _ in events if kind in {"passed", "skipped"}}
                passed += sum(kind == "passed" for kind, *_ in events)
                skipped += sum(kind == "skipped" for kind, *_ in events)
                bad = [(kind, test) for kind, test, _ in events if kind in {"failed", "hung"}]
                apply(source, stamp)
                for kind, test in bad:
                    if self.is_fine(test, wait):
                        status, by = {"failed": "noticed", "hung": "timed out"}[kind], test
                        break
                if by:
                    break
                stopped = any(kind == "stopped" for kind, *_ in events)
                gone = ended | self.broken | (set() if bad or stopped else set(now))
                tests = [one for one in tests if one not in gone and one.split("::")[0] not in self.broken]
                if time.monotonic() > self.deadline:
                    return None
        finally:
            apply(source, stamp)
        if status == "survived" and skipped and not passed:
            status = "unavailable"
        left = 0 if by else len(tests)
        result |= {"status": status, "by": by, "passed": passed, "skipped": skipped, "left": left}
        return result | {"seconds": round(time.monotonic() - start, 1)}

    def first_tests(self, tests: list[str]) -> list[str]:
        """Return a few tests of several files first, then ten times as many in each round."""
        size = FIRST_TESTS * 10**self.rounds
        per_file: Counter[str] = Counter()
        chosen = []
        for test in tests:
            file = test.split("::")[0]
            if per_file[file] < FIRST_PER_FILE * 10**self.rounds and len(chosen) < size:
                per_file[file] += 1
                chosen.append(test)
        self.rounds += 1
        return chosen

    rounds = 0

    def warm(self, choice: TestChoice) -> None:
        """Compile the kernels of this copy once."""
        if importlib.util.find_spec("numba") is None:
            return
        kernels = [test for test in choice.seconds if test.startswith(("tests/kernels/", "tests/recorded/"))]
        self.pytest(kernels, 120, 240)


def run_mutants(options: argparse.Namespace) -> None:
    deadline = time.monotonic() + options.seconds
    database = Map(options.work / "map.sqlite")
    choice = TestChoice(database)
    choice.known_keys = {key for (key,) in database.base.execute("select key from places")}
    database.base.close()
    mutants = draw_mutants(options.seed, options.mutants)
    if options.recheck:
        wanted = {one["id"] for one in read_results([options.recheck]) if one["status"] in {"survived", "unavailable"}}
        mutants = [one for one in mutants if one.id in wanted]
    part, parts = map(int, options.part.split("/"))
    results = options.results or options.work / "results.jsonl"
    known = {one["id"] for one in read_results([results])} if results.exists() else set()
    waiting = [one for one in mutants[part - 1 :: parts] if one.id not in known]
    print(f"{len(mutants)} mutants, {len(waiting)} to run", flush=True)
    lock = multiprocessing.get_context("fork").Lock()

    def work(number: int, taken) -> None:
        worker = Worker(number, options, deadline)
        worker.warm(choice)
        while time.monotonic() < deadline and (place := take_next(taken)) < len(waiting):
            worker.rounds = 0
            result = worker.judge(waiting[place], choice)
            if result is not None:
                with lock, results.open("a") as file:
                    file.write(json.dumps(result | {"seed": options.seed}) + "\n")
                text = " ".join(f"{result['path']}:{result['line']} {result['before']} → {result['after']}".split())
                print(f"{result['status']:10} {result['seconds']:5} s {text[:100]}", flush=True)

    in_workers(min(options.workers, len(waiting) or 1), work)


# --- report ----------------------------------------------------------------------------------------------------------


def read_results(files: list[Path]) -> list[dict]:
    """Read results; a later result of the same mutant replaces an earlier one."""
    results = {}
    for file in files:
        for line in file.read_text().splitlines():
            one = json.loads(line)
            results[one["id"]] = one
    return list(results.values())


def write_report(options: argparse.Namespace) -> None:
    results = read_results(options.files or [options.work / "results.jsonl"])
    classes = json.loads(options.classes.read_text()) if options.classes else {}
    statuses = ("noticed", "timed out", "survived", "no test", "unavailable")
    for title, group in (("operator", lambda one: one["operator"]), ("folder", lambda one: one["path"].split("/")[1])):
        print(f"| {title} | {' | '.join(statuses)} |\n|{' --- |' * (len(statuses) + 1)}")
        groups = defaultdict(Counter)
        for one in results:
            for name in (group(one), "all"):
                groups[name][one["status"]] += 1
        for name, counts in sorted(groups.items(), key=lambda item: (item[0] == "all", item[0])):
            print(f"| {name} | {' | '.join(str(counts[status]) for status in statuses)} |")
        print()
    survivors = [one for one in results if one["status"] in {"survived", "no test"}]
    judged = Counter(classes.get(one["id"], "hole") for one in survivors)
    noticed = sum(one["status"] in {"noticed", "timed out"} for one in results)
    print(f"survivors: {', '.join(f'{judged[name]} {name}' for name in CLASSES)} (unclassified ones count as holes)")
    print(f"noticed: {noticed} of {noticed + judged['hole']}, {noticed / max(noticed + judged['hole'], 1):.1%}")
    target = options.work / "survivors.md"
    with target.open("w") as file:
        for one in sorted(survivors, key=lambda one: (one["path"], one["line"])):
            tests = f"{one['passed']} of {one['tests']} tests passed, {one['skipped']} skipped, {one['left']} not run"
            file.write(f"## {one['id']} {one['operator']}, {one['path']}:{one['line']}: {one['status']}\n")
            file.write(f"class: {classes.get(one['id'], '?')}. {tests}\n\n```diff\n{one['diff']}\n```\n\n")
    print(f"{len(survivors)} survivors in {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, verb in (("map", build_map), ("run", run_mutants), ("report", write_report)):
        one = verbs.add_parser(name)
        one.set_defaults(verb=verb)
        one.add_argument("--work", type=lambda text: Path(text).resolve(), required=True, metavar="DIR")
        if name != "report":
            one.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
            one.add_argument("--workers", type=int, default=1)
        if name == "map":
            one.add_argument("tests", nargs="*", help="folders or files; all but those of docs and papers if omitted")
        if name == "run":
            one.add_argument("--seed", type=int, required=True)
            one.add_argument("--mutants", type=int, default=300)
            one.add_argument("--limit", type=float, default=60, help="seconds of tests per mutant")
            one.add_argument("--part", default="1/1", help="i/n: every n-th mutant")
            one.add_argument("--results", type=lambda text: Path(text).resolve())
            one.add_argument("--recheck", type=Path, help="run only the survivors in this file of results")
        if name == "report":
            one.add_argument("files", nargs="*", type=Path)
            one.add_argument("--classes", type=Path)
    options = parser.parse_args()
    options.verb(options)


if __name__ == "__main__":
    main()
