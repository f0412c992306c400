"""The OpenAPI description of a service and a page for people; both need nothing from the network."""

from __future__ import annotations

from typing import Any

from calibrant.shipping.http_codec import ARROW, JSON, KINDS, LARGEST_LOGIT, NDJSON, NPY, Wanted

BINARY = {"type": "string", "format": "binary"}
PROBLEMS = {
    "400": "the body is not what its content type says",
    "408": "the body did not arrive in time",
    "413": "the body is larger than the limit",
    "415": "this content type is not served",
    "422": "the numbers do not fit the calibrator",
    "503": "the service is stopping or overloaded",
}
CHANCE = {"type": "number", "minimum": 0, "maximum": 1}
NUMBER = {"type": "number", "minimum": -LARGEST_LOGIT, "maximum": LARGEST_LOGIT}


def openapi(version: str, wanted: Wanted) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a service."""
    feedback = {
        "operationId": "feedback",
        "summary": "Outcomes of earlier answers, for the monitor",
        "requestBody": {"required": True, "content": {JSON: {"schema": _FEEDBACK}, NDJSON: {"schema": BINARY}}},
        "responses": {
            "200": {"description": "what was taken", "content": {JSON: {"schema": _TAKEN}}},
            **{status: _problem(text) for status, text in PROBLEMS.items()},
        },
    }
    ready = _get("ready", "Whether new requests are accepted", JSON, {"type": "object"})
    ready["responses"]["503"] = {"description": "stopping or overloaded", "content": {JSON: {"schema": {}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "calibrant", "version": version, "description": "Calibrated probabilities from logits."},
        "paths": {
            "/calibrate": {"post": _calibrate(wanted)},
            "/calibrator": {"get": _get("calibrator", "What is served", JSON, {"type": "object"})},
            "/feedback": {"post": feedback},
            "/monitor": {"get": _get("monitor", "What the monitor knows", JSON, {"type": "object"})},
            "/health": {"get": _get("health", "Whether the process answers", JSON, _HEALTH)},
            "/readyz": {"get": ready},
            "/metrics": {"get": _get("metrics", "Prometheus figures", "text/plain", {"type": "string"})},
        },
        "components": {"schemas": {"Problem": _PROBLEM}},
    }


def _calibrate(wanted: Wanted) -> dict[str, Any]:
    example = [0.5] if wanted.binary else [round(0.1 * k, 1) for k in range(min(wanted.n_classes, 1000))]
    last = wanted.n_classes - 1
    chosen: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": last}
    if wanted.task == "multilabel":
        chosen = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1}}
    predictions = {"type": "array", "items": chosen}
    answers = [
        {
            "type": "object",
            "required": [kind, "predictions"],
            "properties": {kind: {"type": "array"}, "predictions": predictions},
        }
        for kind in KINDS
    ]
    what = "scores" if wanted.binary else f"logits of {wanted.n_classes} classes"
    return {
        "operationId": "calibrate",
        "summary": f"{what.capitalize()} or probabilities in, calibrated probabilities out",
        "description": "The answer has the request's format unless Accept names another of the three.",
        "parameters": [
            _choice("kind", "what npy numbers are; JSON and Arrow name it themselves", "logits"),
            _choice("output", "what comes back: probabilities, or calibrated logits", "probabilities"),
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {
                    "schema": {"oneOf": [_matrix("logits", NUMBER, wanted), _matrix("probabilities", CHANCE, wanted)]},
                    "example": {"logits": [example]},
                },
                NPY: {"schema": BINARY},
                ARROW: {"schema": BINARY},
            },
        },
        "responses": {
            "200": {
                "description": "one row of answers for each row of the request",
                "content": {JSON: {"schema": {"oneOf": answers}}, NPY: {"schema": BINARY}, ARROW: {"schema": BINARY}},
            },
            **{status: _problem(text) for status, text in PROBLEMS.items()},
        },
    }


def _matrix(name: str, number: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    row = {"type": "array", "items": number, "minItems": wanted.width, "maxItems": wanted.width}
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": wanted.max_rows}
    properties: dict[str, Any] = {name: rows}
    if wanted.grouped:
        properties["groups"] = {"type": "array", "items": {"type": ["string", "integer"]}}
    required = list(properties)
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _choice(name: str, words: str, default: str) -> dict[str, Any]:
    schema = {"type": "string", "enum": list(KINDS), "default": default}
    return {"name": name, "in": "query", "description": words, "required": False, "schema": schema}


_HEALTH = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}
_PROBLEM = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_ANSWER = {
    "type": "object",
    "required": ["confidence", "correct"],
    "properties": {
        "confidence": CHANCE,
        "correct": {"enum": [True, False, 0, 1]},
        "id": {"type": ["string", "number"], "description": "an answer that is sent twice counts once"},
        "artifact": {"type": "string", "description": "the header x-calibrant-artifact of the answer"},
    },
    "description": "or probabilities (or logits) and label instead of confidence and correct",
}
_FEEDBACK = {
    "type": "object",
    "required": ["answers"],
    "properties": {"answers": {"type": "array", "items": _ANSWER}},
    "example": {"answers": [{"confidence": 0.9, "correct": True, "id": "order-17"}]},
}
_TAKEN = {
    "type": "object",
    "required": ["taken", "duplicates", "stale", "n", "alarm"],
    "properties": {"taken": {"type": "integer"}, "alarm": {"type": "boolean"}},
}


def _get(name: str, summary: str, content_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    response = {"description": summary, "content": {content_type: {"schema": schema}}}
    return {"operationId": name, "summary": summary, "responses": {"200": response}}


def _problem(text: str) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


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
