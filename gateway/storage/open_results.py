"""`open_results`: creates a store for large results from the settings of a store in another process.

`upstream.large_result_worker`, the program of helper processes, uses it. A helper process has no environment variables of its own, so the
settings of an object storage include those that its client library reads.
"""

from __future__ import annotations

from gateway.json_types import JsonObject
from gateway.storage.result_folder import FolderResults
from gateway.storage.result_store import ResultStore


def open_results(settings: JsonObject) -> ResultStore:
    """Return a store with the same results as the store whose `settings` are given."""
    return FolderResults(**settings)
