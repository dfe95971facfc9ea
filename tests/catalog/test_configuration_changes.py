"""Changes of the configuration are applied to a running gateway one after the other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio

from gateway.app import Gateway
from gateway.config.load import LoadedConfig, load_config
from tests.fakes.running import START_SECONDS, upstream_stdio, write_config


async def test_reload_that_waits_is_judged_by_the_configuration_before_it(tmp_path: Path) -> None:
    """The second of two reloads changes a server that the first one removes, so no earlier command of the server may go on."""

    def loaded(servers: dict[str, Any]) -> LoadedConfig:
        return load_config(write_config(tmp_path, {"mcpServers": servers}), os.environ)

    one = upstream_stdio()
    full, empty, changed = loaded({"one": one}), loaded({}), loaded({"one": {**one, "args": [*one["args"], "--legacy"]}})
    async with Gateway.from_config(full) as gateway:
        await gateway.ready(START_SECONDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.reload, empty)
            tasks.start_soon(gateway.reload, changed)
        assert [(status.name, status.state) for status in gateway.inspection.sources()] == [("one", "held")]
