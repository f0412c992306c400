"""`calibrant shift cal.safetensors FILES...`: a metric over the severities of a shift."""

from dataclasses import replace
from pathlib import Path

from calibrant.cli.drawing import Output
from calibrant.cli.verbs import answer, progress_bar, verb
from calibrant.evaluation.shift import open_shift
from calibrant.evaluation.shift import shift as run
from calibrant.metrics.record import facts
from calibrant.shipping.artifact import read_artifact


@verb
def shift(
    artifact: str,
    files: list[str],
    *,
    others: list[str] | None = None,
    metric: str = "ece",
    as_json: bool = False,
) -> None:
    """Measure a saved calibrator, and the scores without it, over the severities of several corruptions.

    Parameters
    ----------
    files : A bundle with shift_* arrays, or files such as fog_3.npz.
    others : Another artifact to draw beside the first; any number.
    metric : Any metric of calibrant.metrics that returns a number.
    """
    calibrators, schemas = {"none": None}, {}
    for path in (artifact, *(others or ())):
        name = Path(path).stem
        while name in calibrators:
            name += "'"
        found = read_artifact(path)
        calibrators[name], schemas[name] = found.calibrator, found.schema
    with progress_bar(as_json):
        curves = run(calibrators, open_shift(files), metric=metric, schemas=schemas)
    if not as_json:
        Output().table(replace(curves.table(), axis=facts(curves.metric).title))
    notes = [
        f"mean over {len(curves.corruptions)} corruptions ({', '.join(curves.corruptions)})",
        "95% within-subject intervals: differences between corruptions are taken out",
    ]
    answer(as_json, curves.to_dict(), notes)
