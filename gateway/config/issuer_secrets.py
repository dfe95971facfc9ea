"""Expands the secrets of `server.auth.issuers`: those with which the gateway asks authorization servers about tokens. Used by `load`."""

from __future__ import annotations

from gateway.config.expand import Expander
from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of

SECRET_KEY = "clientSecret"
"""The only key of an issuer, in `introspection`, in which `${…}` references are expanded."""


def with_issuer_secrets(root: JsonObject, expander: Expander, notes: list[str]) -> JsonObject:
    """Return the decoded configuration with the references in the secrets of `server.auth.issuers` expanded.

    A note is added to `notes` for each secret that stands in the file. Values of a wrong type stay; the validation reports them.

    Raises:
        ConfigError: A reference cannot be expanded.
    """
    server = members_of(root.get("server"))
    auth = members_of(server.get("auth"))
    if not (written := items_of(auth.get("issuers"))):
        return root
    issuers = [_expanded(issuer, f"server.auth.issuers[{index}]", expander, notes) for index, issuer in enumerate(written)]
    return {**root, "server": {**server, "auth": {**auth, "issuers": issuers}}}


def _expanded(issuer: JsonValue, path: str, expander: Expander, notes: list[str]) -> JsonValue:
    entry = as_object(issuer)
    client = None if entry is None else as_object(entry.get("introspection"))
    if entry is None or client is None or not isinstance(secret := client.get(SECRET_KEY), str):
        return issuer
    place = f"{path}.introspection.{SECRET_KEY}"
    if "${" not in secret:
        notes.append(f"{place}: a secret stands in the file; write a reference such as `${{VAR}}` or `${{file:PATH}}`")
    return {**entry, "introspection": {**client, SECRET_KEY: expander.secret(secret, path=place)}}
