"""Carriers: classes that send the requests of a session with a remote server, one class per transport and MCP version.

A failed request raises `RequestFailure`.

| carrier | transport |
|---|---|
| `HttpCarrier` | streamable HTTP, 2026 (stateless) |
| `HttpSessionCarrier` | streamable HTTP, within an MCP 2025 session that the SDK opened |
| `HttpOrSdkCarrier` | streamable HTTP: one of the two carriers above if it can send a request, else `SdkCarrier` |
| `PipeCarrier` | stdio |
| `SdkCarrier` | the SDK's message streams: HTTP with OAuth, a proxy or a redirect, the handshake of an MCP 2025 session, stdio on Windows |
| `SseCarrier` | the HTTP+SSE transport of 2024-11-05 |

All implement the interface `Carrier` (`carrier`), which is all that a session uses. Only `sdk_carrier` depends on error texts of the SDK.
`http_failures.is_session_gone` reads the text of one HTTP response, the 400 with which older servers reject a session.
"""
