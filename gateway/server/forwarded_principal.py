"""Converts the principal of a request that one replica forwards to another to the text that the replica signs, and back.

A user is forwarded with the facts of its token, because the other replica has not seen the token. Other principals are forwarded by id.
"""

from __future__ import annotations

import json

from gateway.auth.principal import Principal
from gateway.auth.principal_facts import facts_of, from_facts
from gateway.server.replica_signature import USER_SCHEME, Signed


def forwarded_text(principal: Principal) -> str:
    """Return the text with which a principal is forwarded: its id, or the facts of a user as JSON."""
    return json.dumps(facts_of(principal), ensure_ascii=False, separators=(",", ":")) if principal.kind == "user" else principal.id


def signed_principal(signed: Signed) -> Principal | None:
    """Return the principal of a forwarded request whose signature is valid; `None` if the text is malformed.

    It has the rights that it had at the other replica, except that a key has none: the caller looks them up.
    """
    if signed.scheme != USER_SCHEME:
        return None if signed.principal.startswith("user:") else Principal(signed.principal)
    try:
        return from_facts(json.loads(signed.principal))
    except ValueError:
        return None
