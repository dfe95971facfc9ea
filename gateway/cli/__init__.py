"""The command line: one module per command group, imported when its command runs.

Data goes to stdout, all other output to stderr. Commands raise `GatewayError`s, and `main` turns them into exit codes. Other packages are
imported inside commands, so that `moongate --help` and `run --stdio` start fast.
"""
