"""`/ready` tells a load balancer whether the gateway can serve the requests of its callers."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.running import child, free_port, wait_until_ready, write_config

pytestmark = pytest.mark.timeout(60)


def test_gateway_is_not_ready_while_its_api_keys_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "gateway-state" / "keys.json"
    token = KeyStore(file).add("ada").token
    config, port, log = write_config(tmp_path, {"mcpServers": {}}), free_port(), tmp_path / "gateway.log"
    url, command = f"http://127.0.0.1:{port}", ("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config))
    with child(*command, log=log) as process:
        wait_until_ready(process, f"{url}/ready", log)

        def statuses() -> list[int]:
            credentials = {"authorization": f"Bearer {token}"}
            return [httpx2.get(url + path, headers=credentials).status_code for path in ("/ready", "/health", "/status.json")]

        assert statuses() == [200, 200, 200]
        kept = file.read_bytes()
        file.write_bytes(kept[:-9])
        assert statuses() == [503, 200, 503]
        told = httpx2.get(f"{url}/ready").json()
        assert told == {"status": "refusing", "error": "The gateway cannot read its API keys. Its log has the reason."}
        assert "not ready reason=api-keys-not-readable" in log.read_text()
        assert "is damaged" in log.read_text()
        file.write_bytes(kept)
        assert statuses() == [200, 200, 200]
