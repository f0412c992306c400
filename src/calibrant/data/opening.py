"""`open_predictions`: an address, a frame or arrays in, `Predictions` out.

Many files, the parts of a folder, of a pattern such as `parts/*.npz`, or of a bucket, are one set of predictions.

An address is a path, the name of an embedded data set, or anything that fsspec knows (s3://, gs://, hf://, https://,
memory:// …); a folder or a pattern stands for all its files. A remote file is fetched whole when its rows are read,
into a folder of this user's cache that is kept below a bound. The process that reads it fetches it: on a cluster that
is the worker.
"""

import glob
import hashlib
import importlib
import operator
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import Array, as_array, look_like_probabilities
from calibrant.core.errors import InputError, MissingExtraError, NoRowsError
from calibrant.core.schema import KINDS, check_kind, check_task, identifiers, resolve_task
from calibrant.data.arrays import array_field, companions, is_companion, matrix_path
from calibrant.data.assemble import assembled
from calibrant.data.chunks import Chunk, part_error
from calibrant.data.guards import IDS
from calibrant.data.predictions import PER_ROW, Predictions
from calibrant.data.source import (
    CONFIDENCE,
    LABEL_IDS,
    PREDICTIONS,
    Field,
    Fields,
    LabelFile,
    PartsSource,
    Source,
    ViewSource,
    Wanted,
    difference,
    split_names,
)
from calibrant.data.tables import column_fields, frame_columns
from calibrant.engines.engine import opened

EMBEDDED = Path(__file__).parent / "embedded"
"""Where the data sets of the package are."""

PATTERN = re.compile(r"[*?\[]")
REMOTE = re.compile(r"[a-z][a-z0-9+.-]+(::|://)")
"""How addresses begin that are no paths."""

CACHE_BYTES = 8 * 2**30
"""What fetched parts may take on disk, unless CALIBRANT_CACHE_BYTES says otherwise."""

IN_USE_SECONDS = 120.0
"""A part that was read from so recently is never removed."""

READERS = {
    ".npz": "arrays.npz_fields",
    ".npy": "arrays.npy_fields",
    ".parquet": "tables.table_fields",
    ".feather": "tables.table_fields",
    ".arrow": "tables.table_fields",
    ".safetensors": "arrays.safetensors_fields",
    ".csv": "tables.csv_fields",
    ".csv.gz": "tables.csv_fields",
    ".tsv": "tables.csv_fields",
    ".tsv.gz": "tables.csv_fields",
    ".txt": "tables.csv_fields",
    ".zip": "tables.zip_fields",
    ".xlsx": "tables.excel_fields",
    ".p": "arrays.pickle_fields",
    ".pkl": "arrays.pickle_fields",
    ".pickle": "arrays.pickle_fields",
    ".pt": "arrays.torch_fields",
    ".pth": "arrays.torch_fields",
    ".json": "json_lines.fields",
    ".eval": "json_lines.fields",
    ".jsonl": "json_lines.fields",
    ".ndjson": "json_lines.fields",
}
"""Suffix to the function `fields(path, wanted)` that returns the named arrays of a file, unread."""

HOLDS_PARTS = (".npz", ".safetensors", ".p", ".pkl", ".pickle", ".pt", ".pth")
"""Formats in which one file can hold several parts (`#val`, `#test`)."""

FEW_ROWS = 10
"""One file of many is not judged by fewer rows: a few may look like probabilities by chance; fits look at all parts."""


def open_predictions(
    path: Any,
    *,
    kind: str | None = None,
    task: str | None = None,
    scores: str | Sequence[str] | None = None,
    labels: Any = None,
    weights: Any = None,
    by: Any = None,
    cluster: Any = None,
    class_names: Sequence[str] | Mapping[Any, str] | None = None,
    ignore_index: int | None = None,
    require_labels: bool | None = True,
    skip_bad_parts: bool = False,
    engine: Any = "local",
    guard: bool = True,
    strict: bool = False,
    name: str = "",
) -> Predictions:
    """Open a file or folder of predictions, or an embedded data set, without reading its values yet.

    Parameters
    ----------
    path : str, path or object
        `.npz`, `.npy` (a pair), `.parquet`, `.safetensors`, `.csv`, `.csv.gz`, `.jsonl`, `.pt`, a pickle of arrays, a
        folder of such files, a pattern (`parts/*.npz`), the same behind any fsspec address
        (`s3://bucket/parts/*.parquet`), or an embedded name (`cifar100-resnet18#test`; its rows are sorted by
        class). `file#val` picks the arrays `val_logits`, `val_labels`. Objects in memory work too: a frame (pandas,
        polars, pyarrow), a dictionary of arrays, an object with `.predictions` and `.label_ids`, or a pair
        `(scores, labels)`.
    kind : {"logits", "probabilities", "percent"}, optional
        What the values are, where the file does not say or holds both; percent are probabilities from 0 to 100.
    task : {"multiclass", "binary", "multilabel", "pairs"}, optional
        Where names and shapes do not tell.
    scores : str or sequence of str, optional
        The array or column of the scores, or the columns: `"risk"`, `["a", "b", "c"]` or `"a,b,c"`, `"prob_*"`.
    labels, weights, cluster : str, path of an `.npy` file, or array, optional
        The array or column that holds them, or arrays used in place of those in the file. `labels` may also be another
        file: its rows are found by a column that identifies them in both files, or stand in the same order;
        `"solution.csv#species"` names its column.
    by : str or sequence of str, optional
        Arrays or columns that become `groups`.
    class_names : sequence of str, or mapping, optional
        Used in place of those in the file. A mapping says what labels stand for: `{1: "cat", 2: "dog"}`.
    ignore_index : int, optional
        Rows with this label are left out (−100 in Hugging Face and torch).
    require_labels : bool or None
        False accepts a file without labels; None does not read them.
    skip_bad_parts : bool
        Of a folder or pattern, leave out parts that cannot be read and list them in `Predictions.skipped`; every value
        is read once to find them.
    engine : "local", "dask", the address of a scheduler, or an engine
        Where `skip_bad_parts` reads them.
    guard : bool
        False accepts logits that look like probabilities.
    strict : bool
        Accept only documented names and options.
    name : str
        What error messages call an object in memory.

    Returns
    -------
    Predictions

    Examples
    --------
    >>> test = open_predictions("cifar10-resnet18#test")
    >>> test.n, test.n_classes, test.kind
    (10000, 10, 'logits')
    >>> open_predictions({"confidence": [0.9, 0.6], "correct": [True, False]}).task
    'pairs'
    """
    check_kind(kind, percent=True)
    check_task(task)
    columns = [by] if isinstance(by, str) else by or ()
    names = class_names if isinstance(class_names, Mapping | None) else [str(one) for one in class_names]
    wanted = Wanted(
        kind,
        task,
        scores,
        _vector(labels, "labels"),
        _vector(weights, "weights"),
        tuple(word.strip() for column in columns for word in str(column).split(",") if word.strip()),
        _vector(cluster, "cluster"),
        names,
        require_labels,
        ignore_index,
        2 * guard,
        name,
        strict=strict,
    )
    if not isinstance(path, (str, os.PathLike)):
        return _from_object(path, wanted)
    addresses, split, folder = find_files(path)
    wanted = replace(wanted, split=split)
    if not folder:
        return open_file(addresses[0], wanted)
    if any(not isinstance(given, str | None) for given in (wanted.labels, wanted.weights)):
        raise InputError(f"{folder} is a folder or pattern: labels and weights must be in its files")
    wanted = replace(wanted, guard=guard * FEW_ROWS)
    return _open_all(addresses, wanted, folder, engine if skip_bad_parts else None)


def _open_all(addresses: list[Any], wanted: Wanted, name: str, engine: Any) -> Predictions:
    """Open every part and join them in order; all must agree in kind, classes and in having labels and weights.

    A part that cannot be opened is an error that names it. Where an engine is given, it reads everything once; parts in
    which something cannot be read or is no logit or probability are left out and listed in `Predictions.skipped`. One
    of 0 rows adds nothing.
    """
    good: dict[int, Predictions] = {}
    skipped, empty = {}, 0
    for number, address in enumerate(addresses):
        try:
            part = open_file(address, wanted)
            good[number] = _alike(next(iter(good.values())), part) if good else part
        except NoRowsError:
            empty += 1
        except InputError as error:
            named = part_error(error, str(address), number, len(addresses))
            if engine is None:
                raise named from error
            skipped[number] = str(named)
        progress.step(f"opening {name}", number + 1, len(addresses))
    if not good and empty:
        raise NoRowsError(f"{name}: {empty} of {len(addresses)} parts have 0 rows, and no other can be read")
    if good and engine is not None:
        chunks = [Chunk(part, 0, number, len(addresses)) for number, part in good.items()]
        with opened(engine) as running:
            skipped |= running.run(_trouble, chunks, operator.or_)
    left = [part for number, part in good.items() if number not in skipped]
    return _joined(left, name, [skipped[number] for number in sorted(skipped)])


def _trouble(chunk: Chunk) -> dict[int, str]:
    """What is wrong with the values of a part, by its number; nothing if all is well."""
    try:
        for _ in chunk.parts(check=True):
            pass
    except InputError as error:
        return {chunk.part: str(error)}
    return {}


def _alike(first: Predictions, part: Predictions) -> Predictions:
    """A part with the columns of the first in order; an InputError where they differ in what else they hold."""
    part = part.aligned(first.schema, first.name)
    ours, theirs = (
        {"task": one.task, "kind": one.kind, "groups": sorted(one.groups)}
        | {f"having {word.strip('_')}": getattr(one, word) is not None for word in PER_ROW}
        for one in (first, part)
    )
    for word, own in ours.items():
        if own != theirs[word]:
            raise InputError(
                f"{first.name} and {part.name} differ in {word}: {str(own)[:60]} and {str(theirs[word])[:60]}"
            )
    return part


def _joined(parts: list[Predictions], name: str, skipped: list[str]) -> Predictions:
    """The rows of all parts, one after another."""
    if not parts:
        raise InputError(f"{name}: all {len(skipped)} parts are bad; the first: {skipped[0]}")
    images = 0
    for part in parts:
        # numbers that only count the images of one file must not meet those of another
        if part.local_clusters and part.clusters is not None:
            part.clusters = part.clusters + images
            images = int(part.clusters.max()) + 1
    columns = {word: [getattr(part, word) for part in parts] for word in PER_ROW}
    # identifiers may count the rows of one file only
    common = [word for word in parts[0].extras if word not in IDS and all(word in part.extras for part in parts)]
    return parts[0].like(
        whole=False,
        source=PartsSource([part.source for part in parts], name),
        **{word: None if there[0] is None else _joined_identifiers(there) for word, there in columns.items()},
        groups={word: _joined_identifiers([part.groups[word] for part in parts]) for word in parts[0].groups},
        extras={word: _PartsField([part.extras[word] for part in parts]) for word in common},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        skipped=tuple(skipped),
        _checked=False,
    )


class _PartsField(Field):
    """A column that all parts have, read when it is asked for."""

    def __init__(self, columns: list[Field]) -> None:
        self.columns = columns
        self.shape = (sum(one.shape[0] for one in columns), *columns[0].shape[1:])

    def read(self) -> Array:
        """The rows of all parts."""
        return _joined_identifiers([one.read() for one in self.columns])


def _joined_identifiers(columns: list[Array]) -> Array:
    """Groups or clusters of all parts; as exact text where numbers of one part would lose digits beside another's."""
    kinds = {column.dtype.kind for column in columns}
    if len(kinds) == 1 or (kinds <= set("fiub") and all(np.nanmax(np.abs(column)) < 2**53 for column in columns)):
        return np.concatenate(columns)
    return np.concatenate([np.array(names)[codes] for codes, names in map(identifiers, columns)])


def open_parts(path: str | os.PathLike[str], **options: Any) -> dict[str, Predictions]:
    """The one part that `path` names, under "", or every part of a file that has only named ones.

    >>> sorted(open_parts("cifar10-resnet18"))
    ['test', 'val']
    """
    (file, *_), split, folder = find_files(path)
    arrays = any(options.get(word) is not None for word in ("labels", "weights"))
    found = [""]
    if not split and not folder and not arrays and isinstance(file, Path) and suffix_of(file) in HOLDS_PARTS:
        with naming(file):
            found = split_names(reader_of(file)(file, Wanted()))
    if "" in found or not found:
        return {"": open_predictions(path, **options)}
    return {part: open_predictions(f"{os.fspath(path)}#{part}", **options) for part in found}


def _vector(given: Any, what: str) -> Any:
    """An array, the name of one, or the content of an `.npy` file, which wins over a name; labels of any other file."""
    if not isinstance(given, (str, os.PathLike)):
        return given
    address, column = _parted(os.fspath(given))
    file = Path(address)
    with naming(file):
        if file.suffix == ".npy":
            return array_field(file).read()
        if what == "labels" and suffix_of(file) in READERS and file.is_file():
            return LabelFile(str(given), reader_of(file)(file, Wanted(scores=column or None)), column)
    if isinstance(given, os.PathLike):
        raise InputError(f"{what}={address!r} must be an array, the name of one, or the path of a file that is there")
    return given


def _from_object(given: Any, wanted: Wanted) -> Predictions:
    """Predictions from any object that holds scores and labels."""
    if isinstance(given, Predictions):
        return _retold(given, wanted)
    if hasattr(given, PREDICTIONS) and hasattr(given, LABEL_IDS):
        outputs = {PREDICTIONS: given.predictions, LABEL_IDS: given.label_ids}
        # a trainer may return hidden states behind the logits
        given = {word: value[0] if isinstance(value, tuple) else value for word, value in outputs.items()}
    pair = isinstance(given, (tuple, list)) and len(given) in (2, 3)
    if pair:  # bare scores are logits
        words = (wanted.word, "labels", "weights")
        given = {word: as_array(value, word) for word, value in zip(words, given, strict=False) if value is not None}
        wanted = replace(wanted, require_labels=False)
    named = isinstance(given, Mapping) and not {*KINDS, CONFIDENCE, "scores"}.isdisjoint(given)
    wanted = replace(wanted, trusted=pair or named)
    columns = dict(given) if isinstance(given, Mapping) else frame_columns(given)
    if columns is None:
        raise InputError(
            f"{wanted.name or 'predictions'} must be Predictions, a path, a frame, a dictionary of arrays, an object "
            f"with .predictions and .label_ids, or a pair (scores, labels), got {type(given).__name__}"
        )

    def read(asked: Wanted) -> Fields:
        renamed = {wanted.word: asked.word} if pair else {}
        return column_fields({renamed.get(word, word): column for word, column in columns.items()})

    made = assembled(read, wanted)
    if pair and wanted.kind is None and made.flat:
        # the probability of a logit beyond 30 is 1 in 13 digits
        whole, kind = (100, "percent") if np.max(made.values, initial=0) > 30 else (1, "probabilities")
        if look_like_probabilities(made.values / whole):
            raise InputError(
                f"{wanted.name or 'scores'}: all {made.n} lie in [0, {whole}], as probabilities do and logits may: say "
                f'kind="{kind}" or kind="logits"'
            )
    return made


def _retold(given: Predictions, wanted: Wanted) -> Predictions:
    """Predictions of the kind and task that the caller says: two columns may become one score."""
    called = given.name or "the predictions"
    about = ("scores", "labels", "weights", "cluster", "class_names", "ignore_index")
    for word, value in {"by": wanted.by or None, **{word: getattr(wanted, word) for word in about}}.items():
        if value is not None:
            raise InputError(f"{word}= is about a file or table, but these are Predictions")
    if wanted.kind not in (None, given.kind):
        raise InputError(f"kind={wanted.kind!r}, but {called} hold {given.kind}")
    if wanted.task in (None, given.task):
        return given
    resolve_task(wanted.task, given.source.shape, None, called)
    if (given.task, wanted.task) != ("multiclass", "binary"):
        raise InputError(f"{called} hold a {given.task} task, not {wanted.task}")
    source = ViewSource(given.source, partial(difference, kind=given.kind), 1)
    return given.like(source=source, kind="logits", task="binary", _checked=False)


def suffix_of(path: Path) -> str:
    """The suffix that decides the format: `.csv.gz` is one."""
    return next((suffix for suffix in READERS if path.name.lower().endswith(suffix)), path.suffix.lower())


def reader_of(path: Path) -> Callable[..., Any]:
    """The function that reads a path; an InputError that lists the known suffixes for any other."""
    suffix = suffix_of(path)
    if suffix not in READERS:
        raise InputError(f"{path} has the suffix {suffix or '(none)'}, but the known ones are {', '.join(READERS)}")
    module, name = READERS[suffix].split(".")
    return getattr(importlib.import_module(f"calibrant.data.{module}"), name)


def embedded_names() -> list[str]:
    """Names of the data sets that come with the package."""
    return sorted(path.stem for path in EMBEDDED.glob("*.npz"))


def find_files(path: str | os.PathLike[str]) -> tuple[list[Any], str, str]:
    """The files behind an address, the part behind `#`, and what messages call a folder or pattern; "" for one file."""
    if not os.fspath(path):
        raise InputError("the path is empty: give a file, a folder or an embedded data set")
    with naming(path):
        address, split = _parted(os.fspath(path).removeprefix("file://"))
        if REMOTE.match(address):
            system, inner = _system(address)
            with naming(address, Exception):
                if not PATTERN.search(inner) and not system.isdir(inner):
                    return [address], split, ""
                found = system.glob(inner) if PATTERN.search(inner) else system.ls(inner, detail=False)
            parts = [system.unstrip_protocol(name) for name in sorted(map(str, found)) if _holds_rows(Path(name))]
        else:
            file = Path(address)
            if not file.exists() and address in embedded_names():
                file = EMBEDDED / f"{address}.npz"
            file = matrix_path(file) if suffix_of(file) == ".npy" else file
            if file.is_file():
                return [file], split, ""
            if not file.exists() and not PATTERN.search(address):
                hint = "" if file.suffix else f", and no embedded data set ({', '.join(embedded_names())})"
                raise InputError(f"{address} does not exist: there is no such file{hint}")
            files = file.iterdir() if file.exists() else map(Path, glob.glob(address, recursive=True))
            parts = [one for one in sorted(files, key=str) if _holds_rows(one) and one.is_file()]
    if not parts:
        raise InputError(f"{address} holds no prediction files ({', '.join(sorted(READERS))})")
    return parts, split, address


def _parted(text: str) -> tuple[str, str]:
    """An address, and what stands behind its `#`; that may be part of the name of a file that is there."""
    address, mark, part = text.rpartition("#")
    return (address, part) if mark and not Path(text).exists() else (text, "")


def _holds_rows(path: Path) -> bool:
    """Does the name say so? Hidden files and the companions of `.npy` matrices hold none."""
    hidden = path.name.startswith((".", "_"))
    return not hidden and suffix_of(path) in READERS and not (path.suffix == ".npy" and is_companion(path))


def open_file(address: Any, wanted: Wanted) -> Predictions:
    """Open one file, local or remote: that is fetched for its header, labels and weights, its values when asked for."""
    if isinstance(address, Path):
        with naming(address):
            name = address.stem if address.parent == EMBEDDED else str(address)
            named = replace(wanted, name=f"{name}#{wanted.split}" if wanted.split else name)
            return assembled(partial(reader_of(address), address), named)
    found = _open_fetched(address, wanted)
    if isinstance(found.source, ViewSource):
        return found  # rows that are made from others of the file: the local copy is read
    return found.like(source=FetchedSource(address, found, wanted), _checked=False)


@contextmanager
def naming(file: object, errors: type[Exception] = OSError) -> Iterator[None]:
    """Errors of the file system (no permission, a broken disk, no route) are bad input too; each has its own kinds."""
    try:
        yield
    except errors as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error) or type(error).__name__
        raise InputError(f"{file} cannot be read: {' '.join(reason.split())[:200]}") from error


class FetchedSource(Source):
    """Rows of a remote file."""

    def __init__(self, address: str, opened: Predictions, wanted: Wanted) -> None:
        self.name = f"{address}#{wanted.split}" if wanted.split else address
        self.shape, self.dtype = opened.source.shape, opened.dtype
        # names of labels and classes may tell what the scores are, and in which order
        labels = wanted.labels if isinstance(wanted.labels, str) else None
        scores = replace(
            wanted, task=opened.task, labels=labels, weights=None, by=(), cluster=None, require_labels=False
        )
        self._open = partial(_open_fetched, address, scores)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks of the fetched file."""
        local = self._open().source
        if local.shape != self.shape:
            raise InputError(f"{self.name} had {self.shape[0]} rows when it was opened, and now {local.shape[0]}")
        for block in local.blocks(start, stop, rows):
            yield block
            _touch(Path(local.name.partition("#")[0]).parent)

    def cuts(self, rows: int) -> list[int]:
        """Only the first row: a file is fetched as a whole, by one worker."""
        return [0]


def _open_fetched(address: str, wanted: Wanted) -> Predictions:
    local = fetch(address)
    try:
        return open_file(local, wanted)
    except InputError as error:
        raise InputError(error.message.replace(str(local), address), **error.remedy) from error


def fetch(address: str) -> Path:
    """A local copy of a remote file, with the companions of an `.npy` matrix beside it."""
    system, path = _system(address)
    file = Path(path)
    with naming(address, Exception):
        key = hashlib.sha256(f"{address} {system.ukey(path)}".encode()).hexdigest()[:24]
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibrant" / "parts" / key
        if not folder.is_dir():
            fresh = folder.with_name(f"{key}.{os.getpid()}.{time.monotonic_ns()}")
            fresh.mkdir(parents=True)
            system.get_file(path, str(fresh / file.name))
            for name in companions(file.stem).values() if file.suffix == ".npy" else ():
                beside = path.removesuffix(file.name) + name
                if system.exists(beside):
                    system.get_file(beside, str(fresh / name))
            try:
                fresh.rename(folder)
            except OSError:  # another process was first
                shutil.rmtree(fresh)
            _shrink(folder)
    _touch(folder)
    return folder / file.name


def _system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("fsspec", "dask") from error
    with naming(address, Exception):
        return url_to_fs(address)


def _touch(folder: Path) -> None:
    if folder.is_dir():
        os.utime(folder)


def _shrink(newest: Path) -> None:
    """Remove the parts that were not read from for longest, until the rest stays below the bound."""
    room = int(os.environ.get("CALIBRANT_CACHE_BYTES") or CACHE_BYTES)
    folders = sorted((f for f in newest.parent.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    for folder in folders:
        room -= sum(file.stat().st_size for file in folder.iterdir())
        if room < 0 and folder != newest and time.time() - folder.stat().st_mtime > IN_USE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
