"""Who is calling: principals, and the API keys that make one. Not what they may do; that is `policy`.

Used by the server, the console and the `keys` command. `principal` is plain data that every room may read.
"""
