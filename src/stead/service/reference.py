"""The page `/docs`: every route of the API, generated from its OpenAPI document.

Rule: generated here, from this document alone: no script, no style and no font from another site, so that it works
under the service's own strict policy and without a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

METHODS = ("get", "post", "patch", "put", "delete")
STYLE = """
:root { color-scheme: light dark; --quiet: #59636e; --line: #d1d9e0; --code: #f0f3f6; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --quiet: #9da7b3; --line: #3d444d; --code: #1c2128; --link: #8ab4f8; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
a { color: var(--link); }
h2 { margin-top: 2.5rem; text-transform: capitalize; border-bottom: 1px solid var(--line); }
h3 { margin-bottom: 0; font-size: 1rem; }
h3 code { font-weight: 600; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; background: var(--code); border-radius: 4px; }
code { padding: 0.1em 0.3em; }
pre { padding: 0.75rem; overflow-x: auto; }
pre code { padding: 0; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.5rem; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 500; }
summary { color: var(--quiet); cursor: pointer; }
"""


def add_reference(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    def reference() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    @app.get("/docs/style.css", include_in_schema=False)
    def style() -> Response:
        return Response(STYLE, media_type="text/css")


def page(document: Mapping[str, Any]) -> str:
    """The whole document as one page."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    title = escape(document["info"]["title"])
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<title>{title}: REST API</title><link rel="stylesheet" href="/docs/style.css"></head><body>'
    yield f"<header><h1>{title}: REST API</h1>"
    yield "<p>On loopback, reading needs no token; every change needs an operator's token: "
    yield "<code>Authorization: Bearer TOKEN</code>. An error is one sentence in "
    yield '<code>{"error": "..."}</code>. For programs: <a href="/openapi.json">openapi.json</a>.</p>'
    tagged: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                tag = (methods[method].get("tags") or ["other"])[0]
                tagged.setdefault(tag, []).append((method.upper(), path, methods[method]))
    links = (f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in tagged)
    yield f'<nav aria-label="Parts">{" · ".join(links)} · <a href="#schemas">schemas</a></nav></header><main>'
    for tag, routes in tagged.items():
        yield f'<section aria-labelledby="{escape(tag)}"><h2 id="{escape(tag)}">{escape(tag)}</h2>'
        for method, path, route in routes:
            yield from _route(method, path, route)
        yield "</section>"
    yield '<section aria-labelledby="schemas"><h2 id="schemas">schemas</h2>'
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f'<h3 id="schema-{escape(name)}"><code>{escape(name)}</code></h3>'
        yield from _fields(schema)
    yield "</section></main></body></html>"


def _route(method: str, path: str, route: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{method} {escape(path)}</code></h3><p>{escape(route.get('summary', ''))}.</p>"
    parameters = route.get("parameters", ())
    if parameters:
        yield "<table><thead><tr><th>parameter</th><th>in</th><th>type</th><th>meaning</th></tr></thead><tbody>"
        for each in parameters:
            name = f"<code>{escape(each['name'])}</code>"
            cells = (name, each["in"], _type(each["schema"]), escape(each.get("description", "")))
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        yield "</tbody></table>"
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield f"<p>Body: {_type(body)}</p>"
        for example in body.get("examples", ()):
            yield f"<pre><code>{escape(json.dumps(example, indent=1))}</code></pre>"
    yield "<details><summary>Answers</summary><ul>"
    for status, answer in route["responses"].items():
        schemas = [each.get("schema", {}) for each in answer.get("content", {}).values()]
        text = ", ".join(filter(None, map(_type, schemas)))
        yield f"<li>{escape(status)}: {escape(answer['description'])} {text}</li>"
    yield "</ul></details>"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if text := schema.get("description"):
        yield f"<p>{escape(text)}</p>"
    required = schema.get("required", ())
    yield "<table><thead><tr><th>field</th><th>type</th><th>meaning</th></tr></thead><tbody>"
    for name, field in schema.get("properties", {}).items():
        text = escape(field.get("description", ""))
        need = "" if name in required else " (optional)"
        yield f"<tr><td><code>{escape(name)}</code></td><td>{_type(field)}{need}</td><td>{text}</td></tr>"
    yield "</tbody></table>"


def _type(schema: Mapping[str, Any]) -> str:
    """A type as text, with links to named types."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(
            f"<code>{escape(json.dumps(each))}</code>" for each in schema.get("enum", [schema.get("const")])
        )
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {})) or 'anything'}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_type(schema['additionalProperties']) or 'anything'}"
    return escape({"object": "map", "null": "nothing"}.get(str(schema.get("type", "")), str(schema.get("type", ""))))
