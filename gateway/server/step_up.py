"""`StepUp`: tells a client with an access token which OAuth scope it must ask for, if its token does not cover the tool that it calls.

The response is a 403 with the error `insufficient_scope` (RFC 6750, 3.1), with which MCP clients sign in again and repeat the request. It
is sent only if the issuer of the token maps some OAuth scope to the tool. The decision itself is that of the gate (`GuardedTool.admit`),
which also judges every call that passes here. Used by `dispatch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.auth.access_tokens import AccessTokens
from gateway.auth.oauth_scopes import scopes_for
from gateway.auth.principal import Principal
from gateway.errors import NotFound
from gateway.gate.pipeline import audit_refusal
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonMapping, members_of
from gateway.policy.caller_rights import is_hidden
from gateway.policy.decision import Reject
from gateway.protocol import INVALID_PARAMS
from gateway.server.bodies import COUNTED_SCOPE_KEY, BufferedReceive
from gateway.server.head import Head
from gateway.server.http_responses import Refusal
from gateway.server.protected_resource import ProtectedResource
from gateway.wire.jsonrpc import decode_object

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope


class Tools(Protocol):
    """The part of the catalog's interface that is needed to find the tool of a call."""

    def find(self, exposed_name: str) -> GuardedTool:
        """Return the tool that clients see under this name. Raises `NotFound`."""
        ...


class StepUp:
    """Refuses calls of users whose access token lacks a scope that it could have."""

    def __init__(self, tools: Tools, tokens: AccessTokens) -> None:
        """`tools` finds tools by their exposed names, and `tokens` has the issuers with their OAuth scopes."""
        self._tools = tools
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
        refusal, tool, rule = found
        await audit_refusal(tool.gate, tool.exposed_name, principal, rule)
        return refusal.to_response(is_rpc=True, number=message["id"])

    def refusal(self, message: JsonMapping, principal: Principal) -> tuple[Refusal, GuardedTool, str] | None:
        """Return the refusal of a `tools/call` whose token needs a further scope, its tool, and the rule; `None` for every other request.

        The challenge names the OAuth scopes of the token and the missing one, because some clients replace the scopes that they have.
        """
        if principal.kind != "user" or principal.scopes is None or message.get("method") != "tools/call" or "id" not in message:
            return None
        name = members_of(message.get("params")).get("name")
        try:
            tool = self._tools.find(name) if isinstance(name, str) else None
        except NotFound:
            return None
        verdict = None if tool is None else tool.admit(principal)
        if tool is None or not isinstance(verdict, Reject) or is_hidden(verdict):
            return None
        wanted = scopes_for(self._tokens.settings, principal.issuer, "tools", tool.source, tool.definition.name)
        if wanted is None:
            return None
        scopes = dict.fromkeys((*self._tokens.scopes_of(principal), wanted))
        description = "The access token lacks a scope for this tool."
        challenge = self._resource.challenge(error="insufficient_scope", description=description, scopes=list(scopes))
        data = {"error": "insufficient_scope"}
        return Refusal(403, INVALID_PARAMS, verdict.reason, headers=challenge, data=data), tool, verdict.rule
