"""Lifecycle hooks: middleware as one class with a method per step of a run, implemented over the three kinds of middleware.

`before` hooks run in registration order; `after` and error hooks run in reverse order. Of several wrapping hooks, the last registered one
is the outermost, unlike in middleware lists. `docs/middleware.md` describes each hook and its context.
"""
