"""`Models`: gives a gateway access to its models. Clients are created when an agent or a sampling policy first needs a model."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from gateway.config.models import GatewayConfig

if TYPE_CHECKING:
    from gateway.chat.model_resolver import ModelResolver

logger = logging.getLogger(__name__)


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

    def for_sampling(self, config: GatewayConfig) -> ModelResolver | None:
        """Return the `ModelResolver` if a policy lets a model of the gateway answer sampling requests of servers, else `None`.

        Logs a warning for each server whose sampling policy needs a model that is not configured.
        """
        policies = {name: config.policy(name).sampling for name in config.mcp_servers}
        policies = {name: sampling for name, sampling in policies.items() if sampling.mode in ("ask", "answer")}
        if not policies:
            return None
        models = self.resolver()
        for name, sampling in policies.items():
            if sampling.mode == "answer" and not models.can_answer(sampling.model or "auto"):
                logger.warning("sampling not offered, because no model is configured setting=policies.%s.sampling", name)
        return models

    async def aclose(self) -> None:
        """Close all chat and embedding clients that were created."""
        if self._resolver is not None:
            await self._resolver.aclose()
