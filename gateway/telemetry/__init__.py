"""Observability of the gateway: the log on stderr, the event stream, traces and metrics.

`app` creates the `EventStream` and passes it to other packages. The command line configures the log.
"""
