"""`StepUp`: tells a client with an access token which OAuth scope it must ask for, if its token does not cover what it calls or reads.

The response is a 403 with the error `insufficient_scope` (RFC 6750, 3.1), with which MCP clients sign in again and repeat the request. It
is sent only if the issuer of the token maps some OAuth scope to the tool, resource or prompt. The decision itself is `judge_scope`, with
which the gate also judges every request that passes here. Used by `dispatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.auth.oauth_scopes import scopes_for
from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.errors import NotFound
from gateway.gate.pipeline import SourceGate, audit_refusal
from gateway.json_types import JsonMapping, members_of
from gateway.policy.caller_rights import is_hidden
from gateway.policy.decision import PASS, Reject
from gateway.policy.scopes import ScopeKind
from gateway.protocol import INVALID_PARAMS
from gateway.server.bodies import COUNTED_SCOPE_KEY, BufferedReceive
from gateway.server.head import Head
from gateway.server.http_responses import Refusal
from gateway.server.protected_resource import ProtectedResource
from gateway.wire.jsonrpc import decode_object

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from gateway.auth.access_tokens import AccessTokens


@dataclass(frozen=True, slots=True)
class Wanted:
    """The item that a request calls or reads."""

    kind: ScopeKind
    source: str
    native: str
    """Name of the item at its source; for a resource its URI there."""
    exposed: str
    """Name or URI with which the client names the item."""
    gate: SourceGate


class StepUp:
    """Refuses calls of users whose access token lacks a scope that it could have."""

    def __init__(self, catalog: Catalog, tokens: AccessTokens) -> None:
        """`catalog` finds what clients name, and `tokens` has the issuers with their OAuth scopes."""
        self._catalog = catalog
        self._tokens = tokens
        self._resource = ProtectedResource(tokens)

    async def judge(self, head: Head, principal: Principal, scope: Scope, receive: BufferedReceive) -> ASGIApp | None:
        """Judge a request whose body was not decoded yet. Return an ASGI application that sends the refusal, or `None`.

        The body of a request of a user with limited scopes is read here; other bodies are not.
        """
        if principal.kind != "user" or principal.scopes is None or not head.is_json_post:
            return None
        body = await receive.read(head.length)
        message = None if body is None else decode_object(body, is_counted=COUNTED_SCOPE_KEY in scope)
        found = None if message is None else self.refusal(message, principal)
        if message is None or found is None:
            return None
        refusal, item, rule = found
        await audit_refusal(item.gate, item.exposed, principal, rule, is_read=item.kind != "tools")
        return refusal.to_response(is_rpc=True, number=message["id"])

    def refusal(self, message: JsonMapping, principal: Principal) -> tuple[Refusal, Wanted, str] | None:
        """Return the refusal of a call, read or prompt whose token needs a further scope, its item, and the rule; else `None`.

        The challenge names the OAuth scopes of the token and the missing one, because some clients replace the scopes that they have.
        """
        if principal.kind != "user" or principal.scopes is None or "id" not in message:
            return None
        try:
            item = self._wanted(str(message.get("method")), members_of(message.get("params")))
        except NotFound:
            return None
        rights = principal.rights
        verdict = PASS if item is None or rights is None else rights.decide(item.kind, item.source, item.native).verdict
        if item is None or not isinstance(verdict, Reject) or is_hidden(verdict):
            return None
        scope = scopes_for(self._tokens.settings, principal.issuer, item.kind, item.source, item.native)
        if scope is None:
            return None
        scopes = dict.fromkeys((*self._tokens.scopes_of(principal), scope))
        description = f"The access token lacks a scope for this {item.kind[:-1]}."
        challenge = self._resource.challenge(error="insufficient_scope", description=description, scopes=list(scopes))
        data = {"error": "insufficient_scope"}
        return Refusal(403, INVALID_PARAMS, verdict.reason, headers=challenge, data=data), item, verdict.rule

    def _wanted(self, method: str, params: JsonMapping) -> Wanted | None:
        """Return the item that a request names; `None` if it names none. Raises `NotFound` for an unknown one."""
        name, uri = params.get("name"), params.get("uri")
        if method == "tools/call" and isinstance(name, str):
            tool = self._catalog.find(name)
            return Wanted("tools", tool.source, tool.definition.name, name, tool.gate)
        if method == "resources/read" and isinstance(uri, str):
            listing, native = self._catalog.locate(uri)
            return Wanted("resources", listing.entry.source.id, native, uri, listing.reads.gate)
        if method == "prompts/get" and isinstance(name, str):
            listing, native = self._catalog.owner_of_prompt(name)
            return Wanted("prompts", listing.entry.source.id, native, name, listing.reads.gate)
        return None
