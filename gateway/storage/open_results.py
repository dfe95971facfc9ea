"""`open_results`: creates a store for large results from the settings of a store in another process.

`upstream.large_result_worker`, the program of helper processes, uses it. A helper process has almost no environment variables, so the
settings of an object storage include those that its client library reads.
"""

from __future__ import annotations

import os

from gateway.json_types import JsonObject
from gateway.storage.result_folder import FolderResults
from gateway.storage.result_store import ResultStore


def open_results(settings: JsonObject) -> ResultStore:
    """Return a store with the same results as the store whose `settings` are given.

    Environment variables in the settings of an object storage are set in this process.
    """
    if "folder" in settings:
        return FolderResults(**settings)
    from gateway.storage.object_bucket import BucketPlace
    from gateway.storage.result_objects import ObjectResults

    place: JsonObject = dict(settings["place"])
    os.environ.update(place.pop("environment"))
    return ObjectResults(BucketPlace(**place), ttl_seconds=settings["ttl_seconds"], max_bytes_per_owner=settings["max_bytes_per_owner"])
