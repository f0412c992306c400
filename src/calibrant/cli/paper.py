"""`calibrant paper NAME --data DIR`: re-run the study of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from calibrant.evaluation.papers import Study

TRAINING = ("neural_clamping", "soft_objectives")
"""Studies that train networks: their code lives beside the repository's sources, not in the package."""


def paper(
    name: str = typer.Argument(
        ..., metavar="NAME", help="cts, sctl, weight_scaling, neural_clamping or soft_objectives."
    ),
    *,
    data: str = typer.Option(None, "--data", help="Folder of .npz files with val and test predictions."),
    out: str = typer.Option(None, "--out", help="Write tables, claims, results and figures to this folder."),
    resamples: int = typer.Option(1000, "--resamples", min=1, help="Paired bootstrap resamples of the test rows."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples."),
    workers: int = typer.Option(1, "--workers", min=1, help="Networks fitted side by side, each in a process."),
    tiny: bool = typer.Option(False, "--tiny", help="A training study in small, on synthetic images; needs no data."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Re-run the study of a paper on the predictions in a folder: its tables, and which of its claims hold."""
    from calibrant.core.errors import InputError
    from calibrant.evaluation.papers import NAMES, run_study

    folder = None if out is None else Path(out)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"{out} is a file: give the path of a folder to write to")
    if name in TRAINING:
        _train(name, data, folder, tiny=tiny, as_json=as_json)
        return
    if name not in NAMES:
        raise InputError(f"no study is called {name!r}; there are: {', '.join((*NAMES, *TRAINING))}")
    if tiny:
        raise InputError(f"--tiny belongs to the training studies; {name} runs on any small folder given by --data")
    if data is None:
        raise InputError(f"{name} needs predictions: give --data DIR, a folder of .npz files with val and test logits")
    from calibrant.cli.bar import progress_bar

    with progress_bar(quiet=as_json):
        study = run_study(name, data, resamples=resamples, seed=seed, workers=workers)
    _show(study, folder, as_json=as_json)


def _show(study: Study, out: Path | None, *, as_json: bool) -> None:
    import json

    written = []
    if out is not None:
        from calibrant.report.papers import write_study

        written = write_study(study, out)
    if as_json:
        typer.echo(json.dumps(study.to_dict(), indent=2, ensure_ascii=False))
        return
    typer.echo(study.tables_markdown())
    typer.echo(study.claims_markdown(), nl=False)
    if written:
        typer.echo("\nwritten: " + ", ".join(str(path) for path in written))


def _train(name: str, data: str | None, out: Path | None, *, tiny: bool, as_json: bool) -> None:
    """Hand over to the study's own script, which knows how to train."""
    import json
    import subprocess
    import sys

    from calibrant.core.errors import InputError

    script = find_script(name)
    if data is None and not tiny:
        raise InputError(f"{name} trains on images: give --data DIR, or --tiny for a run in small")
    folder = Path("out") / name if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    # one study writes a folder of results, the other appends lines to a file
    target = folder if name == "neural_clamping" else folder / "table.jsonl"
    command = [sys.executable, str(script), "--out", str(target)]
    command += ["--tiny"] if data is None else ["--data", data]
    done = subprocess.run(command, check=False, stdout=sys.stderr if as_json else None)  # noqa: S603
    if as_json:
        files = sorted(str(path) for path in folder.iterdir())
        typer.echo(json.dumps({"study": name, "exit": done.returncode, "files": files}, indent=2))
    if done.returncode:
        raise typer.Exit(1)


def find_script(name: str) -> Path:
    """The script of a training study, in the repository this package is installed from or in the current folder."""
    import calibrant
    from calibrant.core.errors import InputError

    for home in (Path(calibrant.__file__).resolve().parents[2], Path.cwd()):
        script = home / "papers" / name / "run.py"
        if script.is_file():
            return script
    raise InputError(
        f"the study {name} trains networks and is not part of the installed package: run it inside a checkout of the "
        f"repository, where papers/{name}/run.py is"
    )
