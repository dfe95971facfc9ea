"""Opens the API keys and the check of access tokens of a gateway. Used by `gateway`."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import anyio.to_thread

from gateway import __version__
from gateway.auth.api_keys import ApiKeys, KeyStore
from gateway.config.load import LoadedConfig
from gateway.errors import StorageError, StorageUnusable
from gateway.storage.change_feed import ChangeFeed
from gateway.storage.records import Records
from gateway.storage.state_folder import state_dir

if TYPE_CHECKING:
    from gateway.auth.access_tokens import AccessTokens
    from gateway.config.auth_settings import InboundAuthSettings


def key_file(loaded: LoadedConfig) -> Path:
    """Return the path of the file with API keys in the state folder."""
    return state_dir(loaded.config.storage.dir) / "keys.json"


def access_tokens(auth: InboundAuthSettings) -> AccessTokens | None:
    """Return the object that checks access tokens; `None` if the gateway accepts none. Raises `ConfigError`."""
    if not auth.issuers:
        return None
    from gateway.auth.access_tokens import AccessTokens

    return AccessTokens(auth)


async def open_keys(records: Records, feed: ChangeFeed, file: Path, url: str | None) -> ApiKeys:
    """Return the API keys: those in `file` or, if gateways share a database server, those in the database, which are loaded now.

    Raises:
        StorageError: The database cannot be used, or its gateways use another installation key.
    """
    if url is None:
        return KeyStore(file)
    from gateway.auth.key_rows import DatabaseKeys

    keys = DatabaseKeys(records.database, feed)
    try:
        await keys.start()
    except StorageError as error:
        if not (isinstance(error, StorageUnusable) and error.passes):  # the other gateways report why this one does not start
            from gateway.storage.refused_replicas import record_refusal

            await anyio.to_thread.run_sync(record_refusal, url, gethostname(), __version__, str(error))
        raise
    return keys
