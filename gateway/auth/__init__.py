"""Authentication of callers: API keys, and the callers that they identify (`Principal`). `policy` decides what a caller may do.

The server, the console and the command `moongate keys` use this package.
"""
