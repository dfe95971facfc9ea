"""`build_result_store`: creates the store for large results that the configuration names. `app` and `moongate doctor` use it."""

from __future__ import annotations

from pathlib import Path

from gateway.config.models import StorageSettings
from gateway.storage.result_folder import FolderResults
from gateway.storage.result_store import ResultStore


def build_result_store(storage: StorageSettings, state_folder: Path) -> ResultStore:
    """Return the store in the bucket of `storage.results`, or in the folder `results` of the state folder if there is no bucket."""
    ttl, most = storage.result_ttl_seconds, storage.max_result_bytes_per_caller
    if storage.results is None:
        return FolderResults(state_folder / "results", ttl_seconds=ttl, max_bytes_per_owner=most)
    from gateway.storage.object_bucket import BucketPlace
    from gateway.storage.result_objects import ObjectResults

    bucket, _, prefix = storage.results.removeprefix("s3://").partition("/")
    given = storage.s3
    place = BucketPlace(
        bucket,
        prefix.rstrip("/"),
        endpoint=given.endpoint,
        region=given.region,
        access_key=given.access_key,
        secret_key=given.secret_key,
        session_token=given.session_token,
        path_style=given.path_style,
        timeout_seconds=given.timeout_seconds,
    )
    return ObjectResults(place, ttl_seconds=ttl, max_bytes_per_owner=most)
