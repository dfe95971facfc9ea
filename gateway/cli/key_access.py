"""Lists, creates and revokes API keys for commands: in the key file of the state folder, or in the database of `storage.url`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from gateway.cli.common import key_file_of, run_async, state_folder_of

if TYPE_CHECKING:
    from gateway.auth.api_keys import KeyInfo, NewKey
    from gateway.auth.key_rows import DatabaseKeys
    from gateway.config.load import LoadedConfig

T = TypeVar("T")


class KeyAccess(Protocol):
    """The API keys of a configuration. Methods block, and raise `StorageError` if the keys cannot be read or written."""

    def list(self) -> Sequence[KeyInfo]:
        """Return all keys, oldest first, including expired ones."""
        ...

    def add(self, name: str, *, expires_days: float | None = None, scopes: Sequence[str] | None = None) -> NewKey:
        """Create a key, and return it with its token. Raises `ValueError` if an argument is invalid."""
        ...

    def revoke(self, key_id: str) -> KeyInfo:
        """Revoke a key, and return its data. Raises `NotFound` if it does not exist."""
        ...


def key_access(loaded: LoadedConfig) -> KeyAccess:
    """Return access to the API keys of a configuration, which are in its state folder or, with `storage.url`, in the database."""
    from gateway.auth.api_keys import KeyStore

    return _BlockingKeys(loaded) if loaded.config.storage.url is not None else KeyStore(key_file_of(loaded))


class _BlockingKeys:
    """The API keys in the database. Each method opens the database, and closes it again."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded

    def list(self) -> Sequence[KeyInfo]:
        """Return the keys in the database, and those in the key file that the next start of the gateway moves there."""

        async def work(keys: DatabaseKeys) -> Sequence[KeyInfo]:
            await keys.load()
            unmoved = await keys.unmoved(key_file_of(self._loaded))
            return [*keys.list(), *(key.info for key in unmoved.values())]

        return self._with_keys(work)

    def add(self, name: str, *, expires_days: float | None = None, scopes: Sequence[str] | None = None) -> NewKey:
        return self._with_keys(lambda keys: keys.add(name, expires_days=expires_days, scopes=scopes))

    def revoke(self, key_id: str) -> KeyInfo:
        async def work(keys: DatabaseKeys) -> KeyInfo:
            file = key_file_of(self._loaded)
            if key_id in await keys.unmoved(file):
                await keys.take_over(file)
            return await keys.revoke(key_id)

        return self._with_keys(work)

    def _with_keys(self, work: Callable[[DatabaseKeys], Awaitable[T]]) -> T:
        from gateway.auth.key_rows import DatabaseKeys
        from gateway.storage.change_feed import ChangeFeed
        from gateway.storage.records import Records

        storage = self._loaded.config.storage

        async def inner() -> T:
            records = Records(state_folder_of(self._loaded), audit_days=storage.audit_days, url=storage.url)
            try:
                return await work(DatabaseKeys(records.database, ChangeFeed(records.database)))
            finally:
                await records.aclose()

        return run_async(inner)
