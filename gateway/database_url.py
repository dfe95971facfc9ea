"""`database_url_mistake`: judges the URL of a database before it is used or shown. Used by `config` and `storage`.

A raw `@`, `/`, `?` or `#` in a password moves the border between the password and the host, so that a part of the password would be used
and shown as the host.
"""

from __future__ import annotations

import re

_SERVER_SCHEMES = ("postgresql", "postgres")
_BORDERS = re.compile(r"[@/?#]")
_SERVER = re.compile(r"(?:\[[0-9A-Za-z:.%_-]+\]|[^\[\]:#\s]*)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_MAX_SHOWN = 200


def database_url_mistake(url: str) -> str | None:
    """Return what is wrong with the URL of a PostgreSQL server and how to correct it, or `None`. Other URLs are not judged.

    The text never contains the user name, the password or the query.
    """
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] not in _SERVER_SCHEMES:
        return None
    user_information, at, location = rest.rpartition("@")
    if _BORDERS.search(user_information):
        return (
            "an `@`, `/`, `?` or `#` is in the password or the user name, or an `@` is after the host. Percent-encode it there: "
            "`@` as %40, `/` as %2F, `?` as %3F, `#` as %23, and `%` itself as %25"
        )
    server = re.split(r"[/?]", location, maxsplit=1)[0]
    found = _SERVER.fullmatch(server)
    if found is not None and (found["port"] is None or 1 <= int(found["port"]) <= 65535):
        return None
    # Without an `@`, the text after the colon may be a password.
    shown = server if at or server.startswith("[") else server.partition(":")[0]
    return (
        f"the host or the port is malformed at {shown[:_MAX_SHOWN]!r}. Write the host and a port from 1 to 65535, as in "
        "`db.example.com:5432`; write an IPv6 address in brackets, as in `[::1]:5432`"
    )
