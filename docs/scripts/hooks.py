"""What MkDocs shows beside docs/: the reports of papers and benchmarks and the project's own pages, as they are."""

from __future__ import annotations

import posixpath
import re
import sys
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import metric_table
import tutorials

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
OUTSIDE |= {"benchmarks/README.md": "benchmarks.md"}
OUTSIDE |= {
    f"papers/{readme.parent.name}/README.md": f"papers/{readme.parent.name}.md"
    for readme in sorted((ROOT / "papers").glob("*/README.md"))
}
OUTPUTS: dict[str, list[str]] = {}
"""What the cells of each tutorial show, by the address of its page."""
NAME = re.compile(r"<code>([^<>\s]{1,26})</code>")
FORMULA = re.compile(r'class="arithmatex">\\([\[(])(.*?)\\[\])]</', re.DOTALL)
BELOW = re.compile(r"\\operatorname\*\{(.*?)\}_(\{(?:[^{}]|\{[^{}]*\})*\}|\w)")
LINK = re.compile(r"(\[[^\]]*\]\()([^)#\s:]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put method pages that the nav does not mention at the end of the methods, so that a new page needs no entry."""
    methods = next(section["Methods"] for section in config.nav or [] if "Methods" in section)
    known = re.findall(r"methods/[\w-]+\.md", str(methods))
    more = [
        {page.read_text(encoding="utf-8").splitlines()[0].lstrip("# "): f"methods/{page.name}"}
        for page in sorted((ROOT / "docs" / "methods").glob("*.md"))
        if f"methods/{page.name}" not in known
    ]
    if more:
        methods.append({"More methods": more})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live outside docs/, and the list of the studies."""
    for source, target in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=LINK.sub(lambda m, s=source: moved(m, s), text)))
    for notebook in sorted(tutorials.FOLDER.glob("*.ipynb")):
        text, OUTPUTS[f"tutorials/{notebook.stem}.md"] = tutorials.page(notebook)
        files.append(File.generated(config, f"tutorials/{notebook.stem}.md", content=text))
    return files


def moved(match: re.Match[str], source: str) -> str:
    """A link of an outside page, as seen from its place in the site; files that are not shown become plain words."""
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
    shown = OUTSIDE.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
    if shown is None:
        return f"{match[1][1:-2]} (`{wanted}`)"
    here = posixpath.dirname(OUTSIDE[source]) or "."
    return f"{match[1]}{posixpath.relpath(shown, here)}{match[3] or ''})"


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Links from docs/ to files beside it lead to their copies in the site, those to notebooks to their pages."""
    markdown = markdown.replace("<!-- all metrics -->", metric_table.metric_table())
    here = page.file.src_uri  # type: ignore[attr-defined]
    if here in OUTSIDE.values() or here in OUTPUTS:
        return markdown

    def follow(match: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join("docs", posixpath.dirname(here), match[2]))
        if wanted in OUTSIDE:
            target = posixpath.relpath(OUTSIDE[wanted], posixpath.dirname(here) or ".")
            return f"{match[1]}{target}{match[3] or ''})"
        if wanted.endswith(".ipynb"):
            return f"{match[1]}{match[2].removesuffix('.ipynb')}.md)"
        if not wanted.startswith("docs/"):
            return f"{match[1][1:-2]} (`{wanted}`)"
        return match[0]

    return LINK.sub(follow, markdown)


def on_page_content(html: str, page: object, **_: object) -> str:
    """Mark short words of code, such as the names of methods, as names, which the style sheet keeps on one line.

    Formulas become MathML, which browsers set by themselves. In tutorials, put what the cells showed into its places:
    past Markdown, which would read it as text.
    """
    html = FORMULA.sub(_mathml, NAME.sub(r'<code class="name">\1</code>', html))
    for place, shown in enumerate(OUTPUTS.get(page.file.src_uri, [])):  # type: ignore[attr-defined]
        empty = f'<div class="output" id="output-{place}"></div>'
        assert empty in html, f"{page}: the place of output {place} is lost"
        html = html.replace(empty, f'<div class="output">{shown}</div>')
    return html


def _mathml(found: re.Match[str]) -> str:
    """The formula of an element as MathML; what the converter does not know is written in words it knows."""
    tex = BELOW.sub(r"\\underset{\2}{\\mathrm{\1}}", unescape(found[2]))
    tex = re.sub(r"\\[bB]ig+l(?![a-z])", r"\\left", tex)
    tex = re.sub(r"\\[bB]ig+r(?![a-z])", r"\\right", tex)
    display = "block" if found[1] == "[" else "inline"
    return f'class="arithmatex">{convert(tex.strip(), display=display)}</'
