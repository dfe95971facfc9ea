"""Outgoing connections: HTTP clients and transports for requests of the gateway to other machines, with limits on the responses.

There are two kinds of addresses. Addresses in the operator's configuration (the URL of a server, a model or a remote agent) are trusted,
even if they are private: `bounded_transport` reaches them through the proxy in the environment. Addresses that a remote party sent (OAuth
metadata, issuers, token and registration endpoints) are checked: `guarded_fetch` resolves them, and connects to exactly the checked IP
address. Both modules request no compression, follow no redirects, and abort responses that are too large or too slow. One client is not
part of this package, but follows the same rules: `wire.http1_client`, which sends MCP requests to a configured server without the MCP SDK.

Decided: bytes are counted after decompression, because a server may compress a response although no compression was requested. Because:
httpx2 decompresses without a limit, and 300 kB on the wire can become 300 MB in memory. Instead of: a limit in each module that reads
responses. Revisit when: httpx2 limits decompressed data.
"""
