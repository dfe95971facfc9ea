"""Authentication: API keys, and the callers that they identify (`Principal`). `policy` decides what a caller may do.

Used by the server, the console and `moongate keys`.
"""
