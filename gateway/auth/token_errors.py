"""The errors of the check of access tokens: a token that is refused, and an authorization server that cannot be asked."""

from __future__ import annotations

from gateway.errors import GatewayError


class TokenRefused(GatewayError):
    """Raised if an access token is not valid at this gateway.

    The message tells the client why, in ASCII without quotation marks and backslashes, and has nothing of the token.
    """


class IssuerUnavailable(GatewayError):
    """Raised if an access token cannot be checked now, because the authorization server does not answer. A later attempt may succeed.

    The message is for the operator's log.
    """
