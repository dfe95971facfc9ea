"""Observability of the gateway: the log on stderr, the event stream, traces and metrics.

`app` creates the `EventStream`, passes it to other packages, and configures the log.
"""
