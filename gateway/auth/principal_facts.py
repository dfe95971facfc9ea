"""Converts a user to JSON and back, for stored tasks and for requests that replicas forward. The access token is not in the JSON."""

from __future__ import annotations

from typing import cast

from gateway.auth.principal import Principal
from gateway.json_types import JsonObject, JsonValue, as_object


def facts_of(principal: Principal) -> JsonObject:
    """Return what is stored of a user, as JSON: everything of the principal, and nothing of its token."""
    return {
        "id": principal.id,
        "name": principal.name,
        "scopes": None if principal.scopes is None else list(principal.scopes),
        "issuer": principal.issuer,
        "subject": principal.subject,
        "client": principal.client,
        "groups": list(principal.groups),
        "tenant": principal.tenant,
        "expiresAt": principal.expires_at,
        "owner": principal.owner,
    }


def from_facts(facts: JsonValue) -> Principal | None:
    """Return the user that `facts_of` stored; `None` if the value has another form."""
    given = as_object(facts)
    if given is None:
        return None
    texts = [given.get(key) for key in ("id", "name", "issuer", "subject", "client", "tenant", "owner")]
    groups, scopes, expires_at = given.get("groups"), given.get("scopes"), given.get("expiresAt")
    if not all(isinstance(text, str) for text in texts) or isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        return None
    lists = [groups] if scopes is None else [groups, scopes]
    if not all(isinstance(one, list) and all(isinstance(item, str) for item in cast("list[JsonValue]", one)) for one in lists):
        return None
    id_, name, issuer, subject, client, tenant, owner = cast("list[str]", texts)
    if not id_.startswith("user:"):
        return None
    return Principal(
        id_,
        name,
        None if scopes is None else tuple(cast("list[str]", scopes)),
        kind="user",
        issuer=issuer,
        subject=subject,
        client=client,
        groups=tuple(cast("list[str]", groups)),
        tenant=tenant,
        expires_at=float(expires_at),
        owner=owner,
    )
