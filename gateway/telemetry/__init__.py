"""Observability of the gateway: log on stderr, event stream, traces and metrics.

`app` creates the `EventStream`, passes it to other packages, and configures the log.
"""
