"""`moongate auth`: signs in to remote servers with OAuth, shows which servers have tokens, and signs out."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from gateway.cli.common import Group, data_options, diverted_stdout, load, require_servers, run_async, state_folder_of
from gateway.cli.output import moment, print_json, print_note, show, show_table
from gateway.cli.shared_state import in_worker
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig
    from gateway.config.policies import OutboundAuth
    from gateway.upstream.oauth.sign_in import Invitation, SignIn
    from gateway.upstream.oauth.tokens import GrantStore


@click.group(cls=Group)
def auth() -> None:
    """Sign in to remote servers that require it."""


@auth.command("login")
@click.argument("server")
@click.option("--no-browser", is_flag=True, help="Print the address to open, without opening a browser. Open it on this machine.")
@data_options
def login(server: str, no_browser: bool, config_path: str | None, as_json: bool) -> None:
    """Sign in to SERVER in the browser, and store the tokens encrypted."""
    from gateway.policy.approval_policy import MAX_SHOWN_VALUE
    from gateway.policy.framing import shown

    loaded = load(config_path)
    sign_in = _sign_in(loaded, server)

    def show(invitation: Invitation) -> None:
        print_note(f"Signing in to {server!r} at {shown(invitation.issuer, MAX_SHOWN_VALUE)!a}")
        print_note(f"Requested scopes: {shown(' '.join(invitation.scopes), MAX_SHOWN_VALUE) or 'the default scopes'}")
        print_note("Open this address, if your browser does not:" if not no_browser else "Open this address in a browser on this machine:")
        print_note(invitation.url)
        if not no_browser:
            _open_browser(invitation.url)

    grant = run_async(lambda: sign_in.run(show))
    if as_json:
        expires = grant.expires_at and moment(grant.expires_at)
        print_json({"server": server, "issuer": grant.issuer, "scope": grant.scope, "expires": expires})
        return
    kept = "" if grant.refresh_token else " The authorization server gave no refresh token, so this ends with the token."
    print_note(f"Signed in to {server!r}. Running gateways use it from now on.{kept}")


@auth.command("status")
@data_options
def status(config_path: str | None, as_json: bool) -> None:
    """Show which servers need a sign-in, and where you are signed in.

    Tokens are never shown.
    """
    loaded = load(config_path, fetches=False)
    rows = [_row(loaded, server) for server, policy in loaded.config.policies.items() if policy.auth and _is_served(loaded, server)]
    columns = ("server", "type", "state", "expires", "issuer", "scope")
    cells = [[str(row[key] or "-") for key in columns] for row in rows]
    show_table({"servers": list(rows)}, columns, cells, empty="No server has `auth` in its policy.", as_json=as_json)


@auth.command("logout")
@click.argument("server")
@data_options
def logout(server: str, config_path: str | None, as_json: bool) -> None:
    """Sign out of SERVER.

    Its tokens are deleted here and revoked at the authorization server.
    """
    loaded = load(config_path)
    sign_in = _sign_in(loaded, server)
    held, revoked = run_async(sign_in.sign_out)
    text = f"signed out of {server}" + (", tokens revoked" if revoked else "") if held else f"was not signed in to {server}"
    show({"server": server, "forgotten": held, "revoked": revoked}, text, as_json=as_json)


def _open_browser(url: str) -> None:
    """Open a URL in the browser, in a thread because a browser that runs in the terminal returns only when it is closed."""
    import threading
    import webbrowser

    def open_it() -> None:
        with diverted_stdout(), contextlib.suppress(webbrowser.Error):
            webbrowser.open(url)

    threading.Thread(target=open_it, daemon=True, name="browser").start()


def _is_served(loaded: LoadedConfig, server: str) -> bool:
    from gateway.config.models import StdioServer

    entry = loaded.config.mcp_servers.get(server)
    return entry is not None and not isinstance(entry, StdioServer)


def _url_of(loaded: LoadedConfig, server: str) -> str:
    from gateway.config.models import StdioServer

    require_servers(loaded, [server])
    entry = loaded.config.mcp_servers[server]
    if isinstance(entry, StdioServer):
        raise click.UsageError(f"Server {server!r} is a program; give it its credentials in `env`.")
    return entry.url


def _sign_in(loaded: LoadedConfig, server: str) -> SignIn:
    from gateway.config.policies import AuthorizationCode
    from gateway.upstream.oauth.sign_in import SignIn

    url = _url_of(loaded, server)
    auth = loaded.config.policy(server).auth
    if auth is None:
        line = f'"policies": {{"{server}": {{"auth": {{"type": "authorization-code"}}}}}}'
        raise click.UsageError(f"Server {server!r} has no `auth`; write {line} in the configuration.")
    if not isinstance(auth, AuthorizationCode):
        raise click.UsageError(f"The gateway signs in to {server!r} by itself (policies.{server}.auth is client-credentials).")
    return SignIn(server, url, auth, _file(loaded, server, url))


def _file(loaded: LoadedConfig, server: str, url: str) -> GrantStore:
    from gateway.catalog.remote_servers import grant_store
    from gateway.cli.shared_state import shared_database
    from gateway.upstream.oauth.grant_rows import SharedGrants

    shared = shared_database(loaded)
    return grant_store(server, url, state_folder_of(loaded), SharedGrants(shared) if shared is not None else None)


def _row(loaded: LoadedConfig, server: str) -> JsonObject:
    policy: OutboundAuth | None = loaded.config.policy(server).auth
    assert policy is not None
    grant = in_worker(_file(loaded, server, _url_of(loaded, server)).read)
    signed_in = grant is not None and (grant.access_token is not None or grant.refresh_token is not None)
    if policy.type == "client-credentials":
        state = "ready" if signed_in else "not used yet"
    elif not signed_in or grant is None:
        state = "sign in"
    else:
        ended = grant.refresh_token is None and grant.expires_at is not None and grant.expires_at < time.time()
        state = "sign in again" if ended else "signed in"
    return {
        "server": server,
        "type": policy.type,
        "state": state,
        "expires": grant.expires_at and moment(grant.expires_at) if grant is not None and signed_in else None,
        "issuer": grant.issuer if grant is not None else policy.issuer,
        "scope": grant.scope if grant is not None and signed_in else None,
    }
