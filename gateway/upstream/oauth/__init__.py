"""OAuth 2.1 client for remote MCP servers: discovery, sign-in, token storage, and the `Authorization` header of requests.

Decided: the package uses the MCP SDK's models and pure functions (discovery URLs, PKCE, `iss` check, scope union), because they follow the
specification. Instead of: the SDK's `OAuthClientProvider`, which holds a lock during each request and fetches any address that a server
sends. Tokens are encrypted with `cryptography` (AES-GCM), which the SDK depends on already. Revisit when: the SDK's provider holds no lock
during a call and accepts our transport.
"""
