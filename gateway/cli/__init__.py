"""The command line: one module per command group, loaded when its command is used.

Data goes to stdout, everything else to stderr. Commands raise `GatewayError`s; `main` turns them into exit
codes. Other rooms are imported inside commands, so that `moongate --help` and `run --stdio` start fast.
"""
