"""Files that are either the old one or the new one, never half of one."""

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calibrant.core.errors import InputError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; when the block ends well, it takes the place of `path` in one step.

    The bytes reach the disk before the name does (fsync of the file, rename, fsync of the folder), so a crash at any
    moment leaves the old file or the new one. If the block raises, the temporary file goes and `path` stays as it was.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("42")
    >>> target.read_text()
    '42'
    """
    target = _replaceable(path)
    try:
        # the suffix stays, because writers of some formats choose by it or append it
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem[:80]}.", suffix=target.suffix)
    except OSError as error:
        raise _readable(error, path) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # the permissions of the file being replaced; of a new one, what the process's mask leaves
        if target.exists():
            mode = target.stat().st_mode & 0o777
        else:
            mask = os.umask(0o022)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(temporary, mode)
        _flush(temporary)
        os.replace(temporary, target)
        _flush(target.parent)
    except OSError as error:
        if error.filename not in (None, name):
            raise  # another file that the block uses: its own message says which
        raise _readable(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed processes left next to `path`; nobody else may be writing it."""
    target = _replaceable(path)
    name = re.compile(rf"\.{re.escape(target.stem[:80])}\.[a-z0-9_]{{8}}{re.escape(target.suffix)}")
    with suppress(OSError):
        for file in [*target.parent.iterdir()]:
            if name.fullmatch(file.name):
                file.unlink()


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise now what `atomic_write(path)` would raise after hours of work: a folder that is missing or locked."""
    target = _replaceable(path)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.stem[:80]}."):
            pass
    except OSError as error:
        raise _readable(error, path) from error


def check_replaceable(path: str | os.PathLike[str], is_same_kind: Callable[[Path], bool], kind: str) -> None:
    """Raise if `path` is a file with other contents than those to be written: replacing it would destroy data."""
    target = _replaceable(path)
    if target.exists() and target.stat().st_size > 0 and not is_same_kind(target):
        raise InputError(f"{path} exists and is not {kind}: choose another file to write, or delete it first")


def check_source(path: str | os.PathLike[str]) -> None:
    """Raise unless `path` is a file that can be read from its start: a pipe would block."""
    if not os.path.isfile(path):
        what = "is a device or a pipe" if os.path.exists(path) else "does not exist: there is no such file"
        raise InputError(f"{path} {'is a folder' if os.path.isdir(path) else what}; give the path of a file")


def _replaceable(path: str | os.PathLike[str]) -> Path:
    """The file that `path` names, through links: it is replaced, not the link; never a device, a pipe or a folder."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path} is a folder: give the path of a file to write")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is a device or a pipe: give the path of a file to write")
    return target


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # a folder cannot be opened there; the rename itself is durable
    # os.fsync needs a handle that may write on some systems, and a folder allows reading only
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _readable(error: OSError, path: str | os.PathLike[str]) -> Exception:
    folder = os.path.dirname(os.path.abspath(path))
    reasons = {
        errno.ENOENT: f"cannot write {path}: the folder {folder} does not exist; create it first",
        errno.ENOTDIR: f"cannot write {path}: {folder} is not a folder; choose another one",
        errno.EACCES: f"cannot write {path}: no permission in {folder}; choose another folder",
        errno.EPERM: f"cannot write {path}: no permission in {folder}; choose another folder",
        errno.EROFS: f"cannot write {path}: {folder} is read-only; choose another folder",
        errno.ENOSPC: f"cannot write {path}: the disk is full; free some space or choose another folder",
        errno.EDQUOT: f"cannot write {path}: the disk quota is used up; free some space or choose another folder",
        errno.ENAMETOOLONG: f"cannot write {path}: the name is too long; choose a shorter one",
        errno.EFBIG: f"cannot write {path}: the file is larger than this disk allows",
    }
    if error.errno in reasons:
        return InputError(reasons[error.errno])
    return error
