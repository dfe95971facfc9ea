"""`moongate keys`: creates, lists and revokes the API keys of HTTP clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gateway.cli.common import Group, data_options, load
from gateway.cli.configured_names import source_names
from gateway.cli.key_access import KeyAccess, key_access
from gateway.cli.output import moment, print_json, print_note, show, show_table
from gateway.config.suggest import did_you_mean
from gateway.errors import NotFound
from gateway.json_types import JsonObject

if TYPE_CHECKING:
    from gateway.auth.api_keys import KeyInfo
    from gateway.config.load import LoadedConfig

FIRST_KEY = (
    "This is the first key: every client over HTTP needs a key from now on, your IDE and commands too (`--api-key` or $MOONGATE_API_KEY), "
    "at all gateways of this state folder or of its `storage.url`."
)

LAST_KEY = (
    "No key is left: every program on this machine may use the gateway without a key, as before the first one. A gateway beyond loopback "
    "refuses every client until there is a key."
)


@click.group(cls=Group)
def keys() -> None:
    """API keys of the HTTP endpoint. Once a key exists, every request needs a key."""


@keys.command("add")
@click.argument("name")
@click.option("--expires-days", type=float, metavar="DAYS", help="Days until the key stops working. Default: never.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="What it may use, e.g. `docs/*`; repeatable. Default: everything.")
@data_options
def add_key(name: str, expires_days: float | None, scopes: tuple[str, ...], config_path: str | None, as_json: bool) -> None:
    """Create a key for NAME and print it once."""
    store = _store(config_path)
    try:
        made = store.add(name, expires_days=expires_days, scopes=scopes or None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if len(store.list()) == 1:
        print_note(FIRST_KEY)
    if as_json:
        print_json({"id": made.id, "name": name, "key": made.token, "scopes": list(scopes) or None})
        return
    click.echo(made.token)
    for remark in _unknown_sources(scopes, load(config_path, fetches=False)):
        print_note(remark)
    print_note(f"Key {made.id} for {name!r}. It is shown this once; clients send it as `Authorization: Bearer <key>`.")


def _unknown_sources(scopes: Sequence[str], loaded: LoadedConfig) -> list[str]:
    """Return a warning for each scope of a new API key that matches no source of the configuration.

    Such a scope is allowed, because a server may be added later.
    """
    from gateway.policy.scopes import ADMIN_SCOPE, covers_source

    known = source_names(loaded)
    idle = [scope for scope in scopes if scope != ADMIN_SCOPE and not any(covers_source((scope,), source) for source in known)]
    names = {scope: scope.partition("/")[0].rpartition(":")[2] for scope in idle}
    return [f"Scope {scope!r} fits no source of the configuration. {did_you_mean(names[scope], known)}".rstrip() for scope in idle]


@keys.command("list")
@data_options
def list_keys(config_path: str | None, as_json: bool) -> None:
    """List the keys' names and scopes, never the keys themselves."""
    infos = [_as_json(info) for info in _store(config_path).list()]
    columns = ("id", "name", "created", "expires", "scopes")
    none = "No API keys: every program on this machine may use the gateway. `moongate keys add NAME` makes a key."
    show_table({"keys": infos}, columns, [_row(info) for info in infos], empty=none, as_json=as_json)


@keys.command("revoke")
@click.argument("key_id", metavar="ID")
@data_options
def revoke_key(key_id: str, config_path: str | None, as_json: bool) -> None:
    """Revoke a key in every running gateway of this state folder or of its `storage.url`, within a second."""
    store = _store(config_path)
    try:
        info = store.revoke(key_id)
    except NotFound:
        known = store.list()
        named = next((info.id for info in known if info.name == key_id), None)
        hint = f"The key for {key_id!r} has the id {named}." if named else did_you_mean(key_id, [info.id for info in known])
        raise NotFound("key", key_id, f"Unknown key {key_id!r}. {hint or '`moongate keys list` shows them.'}") from None
    if not store.list():
        print_note(LAST_KEY)
    show({"revoked": info.id, "name": info.name}, f"revoked {info.id} ({info.name})", as_json=as_json)


def _store(config_path: str | None) -> KeyAccess:
    return key_access(load(config_path, fetches=False))


def _as_json(info: KeyInfo) -> JsonObject:
    return {
        "id": info.id,
        "name": info.name,
        "created": moment(info.created_at),
        "expires": info.expires_at and moment(info.expires_at),
        "scopes": None if info.scopes is None else list(info.scopes),
    }


def _row(info: JsonObject) -> list[str]:
    scopes = "everything" if info["scopes"] is None else ", ".join(info["scopes"])
    return [info["id"], info["name"], info["created"], info["expires"] or "never", scopes]
