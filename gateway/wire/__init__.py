"""Bytes, HTTP/1.1, server-sent events and JSON-RPC envelopes: each is read and written in one place, for server and upstream."""
