"""Standard streams with readers that may leave: a closed pipe never changes the result of a command."""

import errno
import io
import os
import sys
from typing import Any


class PipeWriter(io.FileIO):
    """Write to a file descriptor; discard the output as soon as its reader has closed the pipe, or at `errors`."""

    reader_left = False
    errors: tuple[int, ...] = (errno.EPIPE, errno.EINVAL)
    """Errors that discard the output; Windows reports EINVAL for a closed pipe."""

    def write(self, data: Any, /) -> int:
        """Return the number of bytes written or discarded."""
        if not self.reader_left:
            try:
                return super().write(data)
            except OSError as error:
                if error.errno not in self.errors:
                    raise
                self.reader_left = True
        return len(data)


def guard_streams() -> None:
    """Replace stdout and stderr with streams that accept output without a reader, also if the caller closed them."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # occupy the number: the next file to be opened would get it and receive the output
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # without -u there is a buffer in between
        if type(raw) is io.FileIO:  # neither a Windows console nor a buffer in memory
            stream.flush()
            target = PipeWriter(raw.fileno(), "w", closefd=False)
            if name == "stderr":  # no other stream could report a full disk
                target.errors += (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
            writer = io.BufferedWriter(target)
            options = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": stream.line_buffering}
            setattr(sys, name, io.TextIOWrapper(writer, **options, write_through=stream.write_through))


def is_stdout_read() -> bool:
    """Return whether stdout still has a reader, as far as writes have shown."""
    return not getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "reader_left", False)
