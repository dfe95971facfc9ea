"""What the gateway says about itself: the bounded event stream and the log on stderr.

Not a metrics or tracing client. Rooms are handed an `EventStream`; `app` sets up the log.
"""
