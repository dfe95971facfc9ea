"""Twelve hooks around the steps of a run, as an adapter over the three kinds of middleware (requirements HK1-HK16).

Another way to write middleware: one class with a method per step in place of three functions around calls. Order differs from
the three layers on purpose (requirements C13): before hooks run as registered, after and error hooks in reverse, and of
wrap hooks the last registered is the outermost. Properties of each hook's context: `docs/middleware.md`.
"""
