"""Requests of callers that do not own the 2025 session they name."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.both_paths import old_heads, old_request, open_session, post, same, standing


async def test_another_caller_s_session_is_not_found_by_either_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        session = await open_session(setup)
        await same(setup, old_heads(session), json.dumps(old_request()).encode(), direct=True)
        lines = old_heads(session) | {"authorization": f"Bearer {setup.keys.add('other').token}"}
        status, *_ = await same(setup, lines, json.dumps(old_request()).encode(), direct=False)
        assert status == 404


async def test_another_caller_s_delete_leaves_the_session_on_the_fast_path(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        owner, other = ({"authorization": f"Bearer {setup.keys.add(name).token}"} for name in ("owner", "other"))
        session = await open_session(setup, more=owner)
        assert (await post(setup.direct, list((old_heads(session) | other).items()), b"", method="DELETE")).status == 404
        status, *_ = await same(setup, old_heads(session) | owner, json.dumps(old_request()).encode(), direct=True)
        assert status == 200
