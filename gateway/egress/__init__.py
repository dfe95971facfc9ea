"""Outgoing connections: every request to another machine goes through this package.

Two kinds of address differ. Addresses that the operator wrote (a server's URL, a model's base URL, a remote agent) are trusted,
private or not, and reached through the environment's proxy: `bounded_transport`. Addresses that a peer wrote (metadata, issuers, token and
registration endpoints) are resolved and judged, and the gateway connects to exactly the allowed address: `guarded_fetch`. Both request no
compression, follow no redirects, and abort responses that are too large or too slow. The exception is `wire.http1_client` for plain calls
to a configured server, which follows the same rules itself.

Decided: bytes are counted after decompression, also if a server compresses without being asked. Because: httpx2 decompresses without a
limit, and 300 kB on the wire become 300 MB in memory. Instead of: a limit in each reader. Revisit when: httpx2 limits decompressed data.
"""
