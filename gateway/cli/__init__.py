"""The command line: one module per command or group of commands, imported when the command runs.

Results go to stdout; notes and errors go to stderr. A command raises a `GatewayError` to fail, and `main` converts the error to a message
and an exit code. Packages that are slow to import are imported inside functions, so that `moongate --help` and `run --stdio` start fast.
"""
