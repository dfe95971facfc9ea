"""`Make` makes an `MCPTool` for one era and transport; `texts` reads the result of a call."""

from __future__ import annotations

from gateway import Content, MCPStdioTool, MCPStreamableHTTPTool, MCPTool
from gateway.upstream.library.mcp_tool_options import MCPToolOptions
from tests.fakes.running import ROOT, upstream_stdio


class Make:
    """Makes an `MCPTool` for one transport and era, which `way` names."""

    def __init__(self, way: str, urls: dict[str, str]) -> None:
        self.transport, self.era = way.split()
        self._urls = urls

    def __call__(self, options: MCPToolOptions | None = None) -> MCPTool:
        chosen = options or {}
        if self.transport == "http":
            return MCPStreamableHTTPTool("fake", self._urls[self.era], **chosen)
        entry = upstream_stdio(*(["--legacy"] if self.era == "legacy" else []))
        return MCPStdioTool("fake", entry["command"], args=entry["args"], cwd=str(ROOT), **chosen)


def texts(result: str | list[Content]) -> list[str | None]:
    assert not isinstance(result, str)
    return [content.text for content in result]
