"""`.pt` and `.pth`: what `torch.save` writes, read without torch and without running code.

Tensors, dictionaries, tuples and lists of them, as in `calibrant.data.pickles`. The archive of today's torch keeps its
numbers uncompressed, so tensors are mapped where they lie; the format before torch 1.6 is read too.
"""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from calibrant.core.errors import InputError
from calibrant.data.fields import Field, Wanted
from calibrant.data.limits import MAX_TEXT_BYTES, check_expansion, reading
from calibrant.data.npz import DAMAGE, compare_checksum, data_offset
from calibrant.data.pickles import named_fields
from calibrant.data.predictions import CHUNK_BYTES
from calibrant.data.tensors import Storage, read_legacy, storage_facts
from calibrant.data.unpickling import TROUBLE, load

PICKLE = "data.pkl"


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The tensors of the file under the names of their layout, unread."""
    with reading(path, "file of torch", (*TROUBLE, *DAMAGE)):
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
        content = _read_archive(path) if zipped else read_legacy(path, load)
        return named_fields(content, path, wanted)


def _read_archive(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        names = [name for name in members if name == PICKLE or name.endswith(f"/{PICKLE}")]
        if len(names) != 1:
            raise InputError(f"it holds {len(names)} members called {PICKLE}, but torch writes one")
        root = names[0][: -len(PICKLE)]
        order = members.get(f"{root}byteorder")
        if order is not None and archive.read(order)[:10] != b"little":
            raise InputError("it was written on a machine of another byte order")
        member = members[names[0]]
        check_expansion(member.file_size, member.compress_size, f"{path}: {PICKLE}")
        if member.file_size > MAX_TEXT_BYTES:
            raise InputError(f"its {PICKLE} has {member.file_size} bytes, but at most {MAX_TEXT_BYTES} are read")
        data = archive.read(member)

    def storage(identifier: tuple[Any, ...]) -> Storage:
        dtype, key, count = storage_facts(identifier)
        own = members.get(f"{root}data/{key}")
        if own is None:
            raise InputError("it holds a damaged tensor")
        if own.compress_type != zipfile.ZIP_STORED or own.flag_bits & 1:
            raise InputError(f"its member {own.filename[:60]} is compressed or encrypted: torch stores it plainly")
        if count * dtype.itemsize > own.file_size:
            raise InputError(f"a storage claims {count} × {dtype.itemsize} bytes, but has {own.file_size}")
        check = partial(compare_checksum, path, own) if own.file_size <= CHUNK_BYTES else None
        return Storage(dtype, count, path, data_offset(path, own), check=check)

    return load(io.BytesIO(data), len(data), storage)
