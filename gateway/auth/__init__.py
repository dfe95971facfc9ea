"""Authentication: principals, and API keys that identify them. `policy` decides what a principal may do.

Used by the server, the console and the command `keys`. `principal` is plain data for every package above.
"""
