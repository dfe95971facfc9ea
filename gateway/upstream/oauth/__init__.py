"""OAuth towards remote servers: discovery, sign-in, tokens at rest, and the header of each request.

Decided: the SDK's models and its pure functions (discovery URLs, PKCE, `iss` check, scope union), because they follow
the specification; instead of its `OAuthClientProvider`, which holds one lock while a request is under way and fetches
any address it is told. `cryptography` (AES-GCM) is what the SDK depends on already. Revisit when the SDK's provider
holds no lock across a call and takes a transport of ours.
"""
