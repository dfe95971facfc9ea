"""Connects to the Temporal server of `tasks.temporal`, and registers the search attributes of tasks. Imported only for this engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from gateway.config.models import TaskSettings
from gateway.config.temporal_settings import TemporalSettings, TemporalTls
from gateway.errors import ConfigError
from gateway.storage.records import Records
from gateway.tasks.scheduled_start import StartScheduled
from gateway.tasks.task_engine import TaskEngine
from gateway.tasks.task_executor import TaskExecutor
from gateway.tasks.temporal_engine import TemporalEngine
from gateway.tasks.temporal_names import PRINCIPAL, SOURCE, STATE, TOOL
from gateway.tasks.temporal_schedules import TemporalSchedules
from gateway.tasks.temporal_workers import TaskQueues

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 3.5
"""Maximum seconds for the connection to Temporal at the start of the gateway.

With the 2 s in which Python and the packages are loaded, the start fails within 7 s, also on a busy machine.
"""

_ATTRIBUTES = (PRINCIPAL, SOURCE, TOOL, STATE)


class TemporalConnection:
    """A connection to a Temporal server, from which `TaskRunner` makes its engine."""

    def __init__(
        self, client: Client, settings: TemporalSettings, queues: TaskQueues, schedules: TemporalSchedules, *, has_attributes: bool
    ) -> None:
        """Store the arguments. With `has_attributes`, the namespace has the search attributes of tasks."""
        self.client = client
        self._settings = settings
        self._queues = queues
        self._schedules = schedules
        self._has_attributes = has_attributes

    def make_engine(self, executor: TaskExecutor, records: Records) -> TaskEngine:
        """Create the engine of this process."""
        attributes = self._has_attributes
        return TemporalEngine(executor, records, self.client, self._settings, self._queues, self._schedules, has_attributes=attributes)


async def connect(tasks: TaskSettings, queue: str, queues: Callable[[], Set[str]], start: StartScheduled) -> TemporalConnection:
    """Connect to the Temporal server of `tasks.temporal` within `CONNECT_SECONDS`.

    `queue` is the task queue of the gateway, and `queues` returns those of its sources. `start` starts the call of a schedule.

    Raises:
        ConfigError: The server is unreachable or refuses the gateway, the namespace does not exist, or a file of `tls` cannot be read.
    """
    settings = tasks.temporal
    tls = await anyio.to_thread.run_sync(_tls, settings.tls) if settings.tls is not None else settings.api_key is not None
    logs = LogForwardingConfig(logging.getLogger("temporalio.core"))  # the default writes to stdout, which carries messages of MCP
    telemetry = TelemetryConfig(logging=LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), logs))
    problem = f"no answer within {CONNECT_SECONDS:g} s"
    with anyio.move_on_after(CONNECT_SECONDS):
        try:
            client = await Client.connect(
                settings.address, namespace=settings.namespace, api_key=settings.api_key, tls=tls, runtime=Runtime(telemetry=telemetry)
            )
            request = DescribeNamespaceRequest(namespace=settings.namespace)
            await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=CONNECT_SECONDS))
            has_attributes = await _register(client, settings.namespace)
            schedules = TemporalSchedules(client, settings.address, queue, tasks.schedules, start)
            return TemporalConnection(client, settings, TaskQueues(queue, queues), schedules, has_attributes=has_attributes)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                text = f"the namespace {settings.namespace!r} does not exist there. Create it, or correct `tasks.temporal.namespace`."
                raise ConfigError(f"tasks.temporal: Temporal at {settings.address}: {text}", path="tasks.temporal.namespace") from None
            problem = _reason(str(error.message or error), settings)
        except (RuntimeError, OSError, ValueError) as error:  # the SDK raises `RuntimeError` for a failed connection
            problem = _reason(str(error), settings)
    text = f"tasks.temporal.address: Temporal at {settings.address} cannot be used: {problem}. Start the server, or correct the address"
    raise ConfigError(f"{text}; `tasks.engine: local` needs no server.", path="tasks.temporal.address")


def _tls(settings: TemporalTls) -> TLSConfig:
    def read(key: str, path: str | None) -> bytes | None:
        try:
            return None if path is None else Path(path).read_bytes()
        except OSError as error:
            text = f"tasks.temporal.tls.{key}: {path!r} cannot be read: {error.strerror or 'unknown reason'}."
            raise ConfigError(text, path=f"tasks.temporal.tls.{key}") from None

    ca, cert, key = (read(name, path) for name, path in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)))
    return TLSConfig(server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=settings.server_name)


def _reason(text: str, settings: TemporalSettings) -> str:
    """Return the reason of a failed connection on one line of limited length, without the API key."""
    reason = " ".join(text.split())[:300].rstrip(".")
    return reason.replace(settings.api_key, "***") if settings.api_key else reason


async def _register(client: Client, namespace: str) -> bool:
    """Return whether the namespace has the search attributes of tasks. Registers missing ones, if the server permits it."""
    timeout = timedelta(seconds=2)
    try:
        listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=namespace), timeout=timeout)
        if missing := [name for name in _ATTRIBUTES if name not in listed.custom_attributes]:
            added = dict.fromkeys(missing, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=added)
            await client.operator_service.add_search_attributes(request, timeout=timeout)
        return True
    except RPCError as error:
        logger.warning(
            "search attributes not registered at Temporal, tasks cannot be searched there namespace=%s attributes=%s reason=%s",
            namespace, ",".join(_ATTRIBUTES), error.status.name,
        )  # fmt: skip
        return False
