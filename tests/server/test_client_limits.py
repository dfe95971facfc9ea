"""Limits of clients: a content block that a client does not support is converted to a supported form."""

from __future__ import annotations

import pytest

from gateway.server.client_limits import fit_outcome
from gateway.tools.base import Complete
from gateway.tools.ports import ClientProfile

LINK = {"type": "resource_link", "uri": "a://b", "name": "b", "mimeType": "text/plain", "annotations": {"priority": 1}}
RESULT = Complete({"content": [{"type": "text", "text": "x"}, LINK], "isError": False})


@pytest.mark.parametrize(("name", "version"), [("Kiro", "2025-11-25"), ("kiro-ide", "2025-06-18"), ("other", "2025-03-26")])
def test_link_becomes_text_for_clients_that_fail_on_it(name: str, version: str) -> None:
    fitted = fit_outcome(RESULT, ClientProfile(era="legacy", name=name, protocol_version=version))
    text = {"type": "text", "text": "Resource b: a://b (text/plain)", "annotations": {"priority": 1}}
    assert fitted.result == {"content": [{"type": "text", "text": "x"}, text], "isError": False}


def test_every_other_client_gets_the_very_same_result() -> None:
    assert fit_outcome(RESULT, ClientProfile(name="editor", protocol_version="2025-06-18")) is RESULT
