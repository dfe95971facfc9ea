"""The read-only web page at `/`, which shows the sources of tools and their status, and the same data as JSON at `/status.json`.

The page has no scripts, so that no text of a server can run in a browser. Requests pass the same checks of API key and Host header as
requests to the MCP endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.auth.principal import Principal
from gateway.json_types import JsonObject
from gateway.tools.base import SourceStatus

_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:3rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}p.sub{opacity:.7;margin:.2rem 0 2rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.45rem .8rem .45rem 0;vertical-align:top}
th,td{border-bottom:1px solid color-mix(in srgb,currentColor 18%,transparent)}
th{font-weight:600;font-size:.85rem;opacity:.7}td.n{font-variant-numeric:tabular-nums}
.dot{display:inline-block;width:.6rem;height:.6rem;border-radius:50%;margin-right:.45rem}
.ready{background:#2da44e}.starting,.auth,.held{background:#bf8700}.down{background:#cf222e}.idle,.disabled{background:#8c959f}
small{opacity:.75}code{font-size:.9em}
"""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def build_routes(
    name: str,
    endpoint: str,
    seen: Callable[[Principal], tuple[Sequence[SourceStatus], Sequence[str]]],
    about: Callable[[], JsonObject],
    viewer: Callable[[Request], Principal],
) -> list[BaseRoute]:
    """Return the Starlette routes of the overview page (`/`) and of `/status.json`.

    `name` is the gateway's name, and `endpoint` the URL of its MCP endpoint. The other parameters are functions, which the routes call for
    each request: `viewer` returns the principal that sent the request, `seen` returns the status of each source of tools and the problems
    of the gateway itself as far as this principal may see them, and `about` returns further fields of `/status.json`, which name sources
    and are therefore left out if roles restrict the principal.
    """

    async def overview(request: Request) -> Response:
        sources, problems = seen(viewer(request))
        return HTMLResponse(render_overview(name, endpoint, sources, problems), headers=_HEADERS)

    async def status(request: Request) -> Response:
        principal = viewer(request)
        sources, problems = seen(principal)
        further = {} if principal.rights is not None and principal.rights.hides_items else about()
        rows = [source.to_json() for source in sources]
        content = {"name": name, "endpoint": endpoint, **further, "sources": rows, "problems": list(problems)}
        return JSONResponse(content, headers=_HEADERS)

    return [Route("/", overview), Route("/status.json", status)]


def render_overview(name: str, endpoint: str, sources: Sequence[SourceStatus], problems: Sequence[str] = ()) -> str:
    """Return the overview page as HTML, with the status of each source and the gateway's problems. Every free text is escaped."""
    rows = "".join(_row(source) for source in sources)
    wrong = "".join(f"<p><span class='dot down'></span>{escape(problem)}</p>" for problem in problems)
    ready = sum(s.state == "ready" for s in sources)
    tools = sum(s.tools for s in sources)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(name)}</title><style>{_STYLE}</style><h1>{escape(name)}</h1>"
        f"<p class=sub>MCP endpoint <code>{escape(endpoint)}</code> · {ready} of {len(sources)} sources ready · {tools} tools</p>"
        f"{wrong}<table><tr><th>Source<th>Kind<th>Transport<th>Protocol<th>Tools<th>Start</tr>{rows}</table></html>"
    )


def _row(source: SourceStatus) -> str:
    since = f" since {escape(source.since)}" if source.since else ""
    took = f"{source.milliseconds:.0f} ms" if source.milliseconds is not None else "-"
    remarks = [*([source.error] if source.error else []), *(question.text for question in source.questions)]
    error = "".join(f"<br><small>{escape(remark)}</small>" for remark in remarks)
    return (
        f"<tr><td><span class='dot {source.state}'></span>{escape(source.name)} <small>{source.state}{since}</small>{error}"
        f"<td>{source.kind}<td>{source.transport}<td>{escape(source.protocol_version) or '-'}"
        f"<td class=n>{source.tools}<td class=n>{took}</tr>"
    )
