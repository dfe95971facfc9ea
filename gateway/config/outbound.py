"""Reads the OAuth settings `auth` of a server's policy: expands the client secret, and checks the settings against the server's entry.

A mistake disables the server. The model of `auth` is in `policies`, and is validated with the whole file. Used by `load`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.config.auth_settings import LOOPBACK_HOSTS
from gateway.config.expand import Expander
from gateway.config.models import ServerEntry, StdioServer
from gateway.errors import ConfigError
from gateway.json_types import JsonObject

SECRET_KEY = "clientSecret"
"""The only key of `auth` in a policy in which `${…}` references are expanded."""


def read_auth(written: JsonObject, entry: ServerEntry, expander: Expander, *, path: str) -> tuple[JsonObject, list[str]]:
    """Return the OAuth settings of a server's policy with the client secret expanded, and notes for the user.

    `written` is the value of the key `auth`, `path` its JSON path, and `entry` the server's entry.

    Raises:
        ConfigError: The server cannot be used: the settings contradict its entry, the issuer is not an https URL, or a reference is in
            another key than the client secret or cannot be expanded.
    """
    if isinstance(entry, StdioServer):
        raise ConfigError("OAuth is for servers with a `url`; give a program its credentials in `env`.", path=path)
    if any(name.lower() == "authorization" for name in entry.headers):
        raise ConfigError("the entry has an `Authorization` header already; keep one of the two.", path=path)
    for key, value in written.items():
        if key != SECRET_KEY and isinstance(value, str) and "${" in value:
            raise ConfigError(f"`${{…}}` is read in `{SECRET_KEY}` only; write the value itself.", path=f"{path}.{key}")
    _check_issuer(written.get("issuer"), f"{path}.issuer")
    parts = urlsplit(entry.url)
    notes = [f"{path}: tokens travel unencrypted to {parts.netloc}; use https"] if is_open(entry.url) else []
    secret = written.get(SECRET_KEY)
    if not isinstance(secret, str):
        return written, notes
    if "${" not in secret:
        notes.append(f"{path}.{SECRET_KEY}: a secret stands in the file; write a reference such as `${{VAR}}` or `${{file:PATH}}`")
    return {**written, SECRET_KEY: expander.secret(secret, path=f"{path}.{SECRET_KEY}")}, notes


def _check_issuer(issuer: object, path: str) -> None:
    if isinstance(issuer, str) and (is_open(issuer) or not urlsplit(issuer).hostname):
        raise ConfigError("is not an https:// address; http:// is allowed for this machine only.", path=path)


def is_open(url: str) -> bool:
    """Return whether requests to the URL are not encrypted. Addresses of this machine need no encryption."""
    parts = urlsplit(url)
    return parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)
