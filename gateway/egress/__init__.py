"""How the gateway asks other machines: every connection that it opens to one goes through this room.

Two kinds of address, two rules. What the operator wrote (a server's URL, a model's base URL, a remote agent) is trusted as
written, private or not, and reached through the environment's proxy: `transport`. What a peer wrote (metadata, issuers,
token and registration endpoints) is judged, and connected to by the number that was judged: `guarded`. Both ask for no
compression, follow no redirect, and end what is too large or too slow while it comes. The one other way out is
`upstream.pool`, the short cut for plain calls to a server as the operator wrote it, which keeps the same rules itself.

Decided: bytes are counted where they leave the socket, after the coding that a server puts on although none was asked for.
Because: httpx2 undoes codings without a bound, and 300 kB on the wire become 300 MB in memory (security.md C1).
Instead of: a limit in each reader. Revisit when: httpx2 bounds what it decodes.
"""
