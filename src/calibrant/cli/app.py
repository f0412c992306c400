"""`calibrant VERB`: finds the verb, turns bad input into one line and exit code 2."""

import importlib
import io
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import typer

from calibrant import __version__
from calibrant.cli.streams import guard_streams
from calibrant.cli.verbs import BUNDLES, plain
from calibrant.core.errors import InputError, MissingExtraError

VERBS = {
    "demo": "Compare methods on embedded predictions and write the report.",
    "measure": "Measure calibration: a verdict, figures with 95% intervals.",
    "compare": "Fit methods on VAL, measure them on TEST, say which to ship.",
    "models": "Compare models on the same rows, and methods over all models.",
    "diff": "Say which figures of two reports differ by more than noise.",
    "select": "Average or choose methods by cross-validation, and save it.",
    "shift": "Measure a saved calibrator over severities of corruptions.",
    "convert": "Convert predictions between file formats; pickles are only read.",
    "fit": "Fit a calibrator on held-out predictions and save it.",
    "apply": "Apply a saved calibrator to a file of predictions.",
    "export": "Write a calibrator to ONNX, alone or behind a classifier.",
    "info": "Say what an artifact is, and from what it was learned.",
    "serve": "Serve a calibrator over HTTP.",
    "monitor": "Watch calibration on a log and raise an alarm when it breaks.",
}
"""One module each in this folder, with a function of the verb's name; order is the order of `--help`."""

KEYWORD = re.compile(rf"""(?<![\w/.-])({"|".join((*BUNDLES["said"], "pair"))})=(?:"([^"]*)"|\[([^\]]*)\]|(?!\w))""")
"""How messages name an option: as Python's keyword, with or without a value."""

BAD_INPUT = 2
INTERNAL_ERROR = 70
"""EX_SOFTWARE of sysexits.h."""
INTERRUPTED = 130
DEBUG = "CALIBRANT_DEBUG"
"""Environment variable that adds a traceback to an internal error."""

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""click's UsageError; typer has click inside or beside it, depending on its version."""


def build(asked: str = "") -> typer.Typer:
    """The application. Only the verb that is asked for is imported: the others are names with a line of help."""
    app = typer.Typer(
        name="calibrant",
        help="Measure, repair and ship the calibration of classifiers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its boxes cut the names of options
    )

    @app.callback(invoke_without_command=True)
    def options(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
        if version:
            typer.echo(__version__)
            raise typer.Exit

    if asked == "measure" and "numpy" not in sys.modules:
        # one BLAS thread, unless the user chose: the products are thin, and waiting threads cost more than they add
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for verb, words in VERBS.items():
        if verb == asked:
            app.command(verb)(getattr(importlib.import_module(f"calibrant.cli.{verb}"), verb))
        else:
            app.command(verb, help=words)(lambda: None)
    return app


def main() -> None:
    """Entry point of the `calibrant` command."""
    for stream in (sys.stdout, sys.stderr):
        # names of files and classes may hold characters that the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # an exception instead of an end on the spot: temporary files are removed on the way out
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # a line like every other: who types a command has no use for a place in the code; it may name columns of a file
    warnings.formatwarning = lambda message, *_, **__: plain(f"warning: {spoken(str(message))}\n")
    guard_streams()
    code = BAD_INPUT
    try:
        code = _run_command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except USAGE_ERROR as error:
        if len(sys.argv) > 1:  # without arguments the help has been shown
            path = error.ctx.command_path if error.ctx else "calibrant"
            _print_error(f"{error.format_message().rstrip('.')}: see {path} --help")
    except InputError as error:
        _print_error(spoken(error.message), *map(command_with, error.remedies))
    except MissingExtraError as error:
        _print_error(str(error))
    except MemoryError:
        _print_error("not enough memory for this input")
    except OSError as error:
        _print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        code = INTERNAL_ERROR
        cause = f"{type(error).__name__}: {error}"[:300]
        _print_error(f"internal error ({cause}): please report it with the traceback that {DEBUG}=1 adds")
    sys.exit(code)


def _run_command() -> int:
    """Run the requested command; return its exit code."""
    command = typer.main.get_command(build(next((word for word in sys.argv[1:] if word[:1] != "-"), "")))
    try:
        with command.make_context("calibrant", sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as exit_request:
        return exit_request.exit_code
    return 0


def spoken(message: str) -> str:
    """A message with the options of the command line in place of the keywords of Python.

    >>> spoken('say kind="percent", or give class_names=')
    'say --kind percent, or give --class-names'
    """

    def option(found: re.Match[str]) -> str:
        value = found[2] or (found[3] or "").replace(", ", ",")
        return f"--{found[1].replace('_', '-')} {value}".rstrip()

    return KEYWORD.sub(option, message)


def command_with(options: Mapping[str, Any]) -> str:
    """The command that was given, with these options in place of those it had; nothing without options."""
    if not options:
        return ""
    words, given = [], iter(sys.argv[1:])
    for word in given:
        name, equals, _ = word.partition("=")
        if not name.startswith("--") or name[2:].replace("-", "_") not in options:
            words.append(word)
        elif not equals:
            next(given, None)
    for name, value in options.items():
        texts = [f"{code}={word}" for code, word in value.items()] if isinstance(value, Mapping) else value
        if isinstance(texts, list):
            texts = ",".join(f'"{text}"' if "," in text else text for text in texts)
        words += [f"--{name.replace('_', '-')}", str(texts)]
    return shlex.join(["calibrant", *words])


def _print_error(message: str, *commands: str) -> None:
    """Print one line, and the commands that would work, after the output so far; a full disk may lose that output."""
    print("error: " + plain(" ".join(message.split())), file=sys.stderr)
    for command in commands:
        print("try: " + plain(command), file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # or Python would fail with exit code 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
