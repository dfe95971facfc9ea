"""`TemporalSettings`: the section `tasks.temporal` of the configuration, which names the Temporal server of the gateway's tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from gateway.config.base_models import Model

NonEmpty = Annotated[str, Field(min_length=1)]


class TemporalTls(Model):
    """TLS of the connection to Temporal. `{}` means TLS with the certificate authorities of the system."""

    ca: NonEmpty | None = None
    """File with the certificates (PEM) of the authorities that may sign the server's certificate. Left out: those of the system."""
    cert: NonEmpty | None = None
    """File with the gateway's certificate (PEM), if the server requires one (mTLS)."""
    key: NonEmpty | None = None
    """File with the private key (PEM) of `cert`."""
    server_name: NonEmpty | None = None
    """Name that the server's certificate must have, if it differs from the host in `address`."""

    @model_validator(mode="after")
    def _pair(self) -> TemporalTls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("`cert` and `key` belong together; write both or neither")
        return self


class TemporalVersioning(Model):
    """Worker versioning of Temporal: which deployment and build this gateway is."""

    deployment: Annotated[str, Field(min_length=1, pattern=r"^[^.]+$")]
    """Name of the worker deployment, without a dot."""
    build_id: NonEmpty
    """Id of this build. Temporal sends tasks to it after you made it the current or ramping version of the deployment."""


class TemporalSettings(Model):
    """The Temporal server that dispatches tasks, for `tasks.engine: temporal`."""

    address: Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}$")] = "127.0.0.1:7233"
    """Host and port of the server's gRPC endpoint."""
    namespace: NonEmpty = "default"
    """Namespace of the workflows. It must exist. Its retention decides how long Temporal shows ended tasks."""
    api_key: NonEmpty | None = None
    """API key of Temporal Cloud, by reference: `${env:TEMPORAL_API_KEY}`. It is sent over TLS only."""
    tls: TemporalTls | None = None
    """TLS of the connection. Left out: TLS if `apiKey` is set, else a plain connection."""
    task_queue: NonEmpty | None = None
    """Task queue of the gateway's tasks. Only gateways that share a database may share it. Left out: `moongate-` and the gateway's id.
    Required with `storage.url`.
    """
    versioning: TemporalVersioning | None = None
    """Worker versioning. Left out: every gateway of the task queue gets tasks."""
    ui: Annotated[str, Field(pattern=r"^https?://[^\s]+$")] | None = None
    """URL of Temporal's web interface, such as `http://127.0.0.1:8233`. With it, `moongate tasks` shows a link for each task."""
