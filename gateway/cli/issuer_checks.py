"""The checks of `moongate doctor` that ask the authorization servers of `server.auth.issuers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cli.checks import Check
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.auth.access_tokens import TrustedIssuer
    from gateway.config.load import LoadedConfig


async def issuer_checks(loaded: LoadedConfig) -> list[Check]:
    """Check that the keys of each issuer can be fetched, and that an endpoint for introspection is known. Asks all issuers at once."""
    auth = loaded.config.server.auth
    if not auth.issuers:
        return []
    from gateway.auth.access_tokens import AccessTokens

    try:
        tokens = AccessTokens(auth)
    except ConfigError:
        return []  # reported by the check of the API keys
    return await _ask(list(tokens.issuers))


async def _ask(issuers: list[TrustedIssuer]) -> list[Check]:
    import anyio

    found: dict[str, Check] = {}

    async def ask(issuer: TrustedIssuer) -> None:
        found[issuer.settings.issuer] = await _check(issuer)

    async with anyio.create_task_group() as tasks:
        for issuer in issuers:
            tasks.start_soon(ask, issuer)
    return [found[issuer.settings.issuer] for issuer in issuers]


async def _check(issuer: TrustedIssuer) -> Check:
    from gateway.auth.token_errors import IssuerUnavailable

    subject, client = f"issuer {issuer.settings.issuer}", issuer.settings.introspection
    fix = "Check the address and the network; until it answers, tokens of this issuer are refused once its known keys are too old."
    has_keys = await issuer.keys.refresh()
    if client is not None:
        try:
            endpoint = client.endpoint or await issuer.metadata.introspection_url()
        except IssuerUnavailable as error:
            return Check("fail", subject, str(error), fix, "unreachable")
        if not has_keys:
            return Check("warn", subject, f"only opaque tokens are accepted, because there are no keys: {issuer.keys.problem}", "")
        return Check("ok", subject, f"{_count(issuer)}; opaque tokens are checked at {endpoint}", "")
    if not has_keys:
        return Check("fail", subject, str(issuer.keys.problem), fix, "unreachable")
    if not len(issuer.keys):
        return Check("fail", subject, "it publishes no key that signs tokens", "Check `jwksUrl`.", "unreachable")
    return Check("ok", subject, _count(issuer), "")


def _count(issuer: TrustedIssuer) -> str:
    return f"{len(issuer.keys)} signing key{'' if len(issuer.keys) == 1 else 's'}"
