"""Run the notebooks of docs/tutorials again and keep what they show: `python docs/scripts/tutorials.py [NAME …]`.

`page` turns a kept notebook into a page of the site; the build itself runs no notebook.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "tutorials"


def main(names: list[str]) -> None:
    """Execute notebooks, each in an empty folder, and write them back."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            path.write_text(json.dumps(executed(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(path.name)


def executed(path: Path) -> dict[str, Any]:
    """The notebook after a run of all its cells, without what differs between two equal runs."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(path.read_bytes())
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        environment["TERM"] = "dumb"  # a command that takes long would draw its progress
        command = [
            sys.executable,
            "-m",
            "jupyter",
            "nbconvert",
            "--to",
            "notebook",
            "--execute",
            "--inplace",
            str(copy),
        ]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{path.name} does not run: {done.stderr[-2000:]}")
        notebook: dict[str, Any] = json.loads(copy.read_text(encoding="utf-8"))
    notebook["metadata"] = json.loads(path.read_text(encoding="utf-8"))["metadata"]
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        outputs = cell.get("outputs", [])
        # a bar is shown while a cell takes long, and is left empty
        outputs[:] = [one for one in outputs if "".join(one.get("data", {}).get("text/html", "-"))]
        for output in outputs:
            output.pop("metadata", None) if output["output_type"] == "stream" else output.update(metadata={})
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = few_colours(output["data"]["image/png"])
    return notebook


def few_colours(picture: str) -> str:
    """A base64 PNG with 64 colours, a third as large: plots need no more, and every run is kept in the repository."""
    from PIL import Image

    written = io.BytesIO()
    drawn = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    drawn.quantize(64).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode() + "\n"


def page(path: Path) -> tuple[str, list[str]]:
    """(Markdown with a `<div class="output">` per output, the HTML of these outputs)."""
    lines: list[str] = []
    shown: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            lines += [f'<div class="output" id="output-{len(shown)}"></div>', ""]
            shown.append(as_html(output))
    lines += [f"[The notebook]({path.name}) to run yourself."]
    return "\n".join(lines), shown


def as_html(output: dict[str, Any]) -> str:
    """The richest form of one output."""
    data = {kind: value if isinstance(value, str) else "".join(value) for kind, value in output.get("data", {}).items()}
    if "text/html" in data:
        return data["text/html"]
    if "image/svg+xml" in data:
        picture = base64.b64encode(data["image/svg+xml"].encode()).decode()
        return f'<img alt="what this cell draws" src="data:image/svg+xml;base64,{picture}">'
    if "image/png" in data:
        return f'<img alt="what this cell draws" src="data:image/png;base64,{data["image/png"].strip()}">'
    text = "".join(output["text"]) if "text" in output else data.get("text/plain", "")
    return f"<pre><code>{html.escape(text)}</code></pre>"


if __name__ == "__main__":
    main(sys.argv[1:])
