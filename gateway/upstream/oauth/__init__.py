"""OAuth 2.1 as a client of remote servers: discovery, sign-in, token storage, and the `Authorization` header of requests.

Decided: the SDK's models and pure functions (discovery URLs, PKCE, `iss` check, scope union), because they follow the specification.
Instead of: its `OAuthClientProvider`, which holds a lock during each request and fetches any address it is given. `cryptography` (AES-GCM)
is a dependency of the SDK already. Revisit when: the SDK's provider holds no lock across a call and accepts our transport.
"""
