"""`Models`: gives a gateway access to its models. Clients are created when an agent or a sampling policy first needs a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.chat.model_resolver import ModelResolver


class Models:
    """Owner of the gateway's `ModelResolver`, which creates chat clients. Agents and sampling requests share the clients."""

    def __init__(self, default: str | None) -> None:
        """Store `default`, the model name in `defaults.model` of the configuration, or `None` if it is not set."""
        self._default = default
        self._resolver: ModelResolver | None = None

    def resolver(self) -> ModelResolver:
        """Return the `ModelResolver`, which creates chat clients by the names of models. It is created at the first call."""
        if self._resolver is None:
            from gateway.chat.model_resolver import ModelResolver

            self._resolver = ModelResolver(os.environ, self._default)
        return self._resolver

    async def aclose(self) -> None:
        """Close all chat and embedding clients that were created."""
        if self._resolver is not None:
            await self._resolver.aclose()
