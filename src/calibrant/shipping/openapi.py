"""The OpenAPI description of a service and a page for people; both need nothing from the network."""

from __future__ import annotations

from typing import Any

from calibrant.core.arrays import Json
from calibrant.core.schema import KINDS
from calibrant.shipping.http_codec import ARROW, JSON, LARGEST_LOGIT, NDJSON, NPY, Wanted


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _object(properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


BINARY = {"schema": {"type": "string", "format": "binary"}}
PROBLEM = {
    "description": "what is wrong, in one line: 400 malformed, 408 too slow, 413 too large, 415, 422 does not fit, 503 "
    "overloaded",
    "content": {JSON: {"schema": _object({"error": {"type": "string"}})}},
}
CHANCE = {"type": "number", "minimum": 0, "maximum": 1}
NUMBER = {"type": "number", "minimum": -LARGEST_LOGIT, "maximum": LARGEST_LOGIT}
ANSWER = {
    "type": "object",
    "required": ["confidence", "correct"],
    "properties": {
        "confidence": CHANCE,
        "correct": {"enum": [True, False, 0, 1]},
        "id": {"type": ["string", "number"]},
    },
    "description": "or probabilities (or logits) and label instead of confidence and correct; an id counts once",
}
OUTCOMES = _object({"answers": _list(ANSWER)})
READS = {
    "/calibrator": "What is served",
    "/monitor": "What the monitor knows",
    "/health": "Whether the process answers",
    "/readyz": "Whether new requests are accepted",
    "/metrics": "Prometheus figures",
}
OPTIONS = {
    "kind": "what npy numbers are [default: as fitted]",
    "output": "what comes back: probabilities, or calibrated logits",
}


def openapi(version: str, wanted: Wanted) -> Json:
    """The OpenAPI 3.1 document of a service."""
    example = [1.0] + [0.0] * (wanted.width - 1)  # logits and probabilities of any task
    chosen: Any = {"type": "integer", "minimum": 0, "maximum": wanted.n_classes - 1}
    if wanted.task == "multilabel":
        chosen = _list({**chosen, "maximum": 1})
    bodies, answers = [], []
    for kind, number in (("logits", NUMBER), ("probabilities", CHANCE)):
        row = {**_list(number), "minItems": wanted.width, "maxItems": wanted.width}
        rows: Json = {kind: {**_list(row), "minItems": 1, "maxItems": wanted.max_rows}}
        if wanted.grouped:
            rows["groups"] = _list({"type": ["string", "integer"]})
        bodies.append({**_object(rows), "additionalProperties": False})
        answers.append(_object({kind: {"type": "array"}, "predictions": _list(chosen)}))
    takes = {JSON: {"schema": {"oneOf": bodies}, "example": {wanted.kind: [example]}}, NPY: BINARY, ARROW: BINARY}
    what = "scores" if wanted.binary else f"logits of {wanted.n_classes} classes"
    summary = f"{what.capitalize()} or probabilities in, calibrated probabilities out"
    calibrate = _post(summary, takes, {JSON: {"schema": {"oneOf": answers}}, NPY: BINARY, ARROW: BINARY})
    choice = {"in": "query", "schema": {"type": "string", "enum": list(KINDS)}}
    calibrate["parameters"] = [{**choice, "name": name, "description": words} for name, words in OPTIONS.items()]
    outcomes = {JSON: {"schema": OUTCOMES}, NDJSON: BINARY}
    feedback = _post("Outcomes of earlier answers, for the monitor", outcomes, {JSON: {}})
    paths: Json = {"/calibrate": {"post": calibrate}, "/feedback": {"post": feedback}}
    for path, summary in READS.items():
        answer = {"description": summary, "content": {"text/plain" if path == "/metrics" else JSON: {}}}
        paths[path] = {"get": {"summary": summary, "responses": {"default": answer}}}
    about = {"title": "calibrant", "version": version, "description": "Calibrated probabilities from logits."}
    return {"openapi": "3.1.0", "info": about, "paths": paths}


def _post(summary: str, takes: Json, gives: Json) -> Json:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": takes},
        "responses": {"200": {"description": "the answer", "content": gives}, "default": PROBLEM},
    }


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>calibrant</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
  code, pre, textarea { font: 14px/1.4 ui-monospace, monospace }
  textarea { width: 100%; height: 6rem; box-sizing: border-box }
  pre { background: #f4f4f4; padding: .8rem; overflow: auto; max-height: 20rem; white-space: pre-wrap }
  table { border-collapse: collapse } td { padding: .2rem .8rem .2rem 0; vertical-align: top }
  @media (prefers-color-scheme: dark) {
    body { background: #181818; color: #ddd } pre, textarea { background: #262626; color: #ddd }
  }
</style>
<h1>calibrant</h1>
<p id="what">Logits in, calibrated probabilities out.</p>
<h2>Paths</h2>
<table id="paths"></table>
<h2>Try it</h2>
<label for="body">POST /calibrate</label>
<textarea id="body" spellcheck="false"></textarea>
<p><button id="send">Send</button></p>
<pre id="answer" aria-live="polite"></pre>
<p><a href="openapi.json">openapi.json</a></p>
<script>
  const get = id => document.getElementById(id);
  fetch("openapi.json").then(r => r.json()).then(api => {
    for (const [path, methods] of Object.entries(api.paths))
      for (const [method, about] of Object.entries(methods)) {
        const row = get("paths").insertRow();
        row.insertCell().appendChild(document.createElement("code")).textContent = method.toUpperCase() + " " + path;
        row.insertCell().textContent = about.summary;
      }
    const example = api.paths["/calibrate"].post.requestBody.content["application/json"].example;
    get("body").value = JSON.stringify(example);
  });
  fetch("calibrator").then(r => r.json()).then(c => {
    get("what").textContent = c.method + " for " + c.n_classes + " classes: logits in, calibrated probabilities out.";
  });
  get("send").onclick = async () => {
    const r = await fetch("calibrate",
      { method: "POST", headers: { "content-type": "application/json" }, body: get("body").value });
    get("answer").textContent = r.status + "\\n" + await r.text();
  };
</script>
"""
