"""Carriers: one class per transport and MCP version that sends the requests of a session and raises `RequestFailure` if one fails.

| carrier | transport |
|---|---|
| `HttpCarrier` | streamable HTTP, 2026 (stateless) |
| `HttpSessionCarrier` | streamable HTTP, within a 2025 session that the SDK opened |
| `HttpOrSdkCarrier` | either of these if it can carry a request, else the SDK |
| `PipeCarrier` | stdio |
| `SdkCarrier` | the SDK's message streams: HTTP with OAuth, a proxy or a redirect, the handshake of a 2025 session, stdio on Windows |
| `SseCarrier` | the HTTP+SSE transport of 2024-11-05 |

A session sees one `Carrier` and does not know which. Only `sdk_carrier` knows the error texts of the SDK.
"""
