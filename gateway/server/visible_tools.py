"""`seek_visible`: finds a tool for a client's request, and treats a tool that is hidden from the caller like an unknown one."""

from __future__ import annotations

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.errors import NotFound
from gateway.gate.pipeline import audit_refusal
from gateway.gate.tools import GuardedTool
from gateway.policy.caller_rights import is_hidden


async def seek_visible(catalog: Catalog, exposed_name: str, principal: Principal) -> GuardedTool:
    """Return the tool that clients call by this name; if it is unknown, first wait for starting sources.

    A tool that roles or Cedar policies hide from the principal is recorded as refused, and gets the error of an unknown tool before
    any property of the tool can influence the response.

    Raises:
        NotFound: The tool does not exist, or is hidden from the principal.
    """
    tool = await catalog.seek(exposed_name)
    if principal.rights is not None and is_hidden(verdict := tool.admit(principal)):
        await audit_refusal(tool.gate, exposed_name, principal, verdict.rule)
        raise NotFound("tool", exposed_name)
    return tool
