"""`calibrant demo`: the whole way on the embedded CIFAR-100 predictions."""

from pathlib import Path

import calibrant as cal
from calibrant.cli.compare import show
from calibrant.cli.verbs import answer, progress_bar, verb
from calibrant.core.atomic import check_target

DATA = "cifar100-resnet18"
METHODS = "none,ts,cts,cws,sctl+ts,ts+top,shape,conf+shape+keep"


@verb
def demo(*, everything: bool = False, out: str = "out", resamples: int = 1000, as_json: bool = False) -> None:
    """Compare methods on the embedded CIFAR-100 predictions, write the report and save the best method.

    Parameters
    ----------
    everything : All methods instead of a short list.
    out : Folder for report.html and the saved winner.
    """
    folder = Path(out)
    if not folder.exists():
        folder.mkdir(parents=True)
    report, artifact = folder / "report.html", folder / "cal.safetensors"
    check_target(report)
    with progress_bar(as_json):
        result = cal.compare(f"{DATA}#val", f"{DATA}#test", "all" if everything else METHODS, resamples=resamples)
    cal.save(result.row(result.best or "none").calibrator, artifact, class_names=result.class_names)
    cal.write_report(result, report)
    if not as_json:
        show(result)
    saved = f"\nbest method saved: {artifact}   (calibrant apply {artifact} FILE -o calibrated.npz)"
    document = {**result.to_dict(), "report": str(report), "artifact": str(artifact)}
    answer(as_json, document, [saved, str(report.resolve())])
