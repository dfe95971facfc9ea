"""`ReadGate`: what a read passes on its way out, and what is recorded of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.policies import SourcePolicy
from gateway.errors import PolicyDenied, Rejected, UpstreamTimeout
from gateway.gate.concurrency import Limiter
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.reads import Read, ReadGate
from gateway.json_types import JsonObject
from gateway.storage.result_folder import FolderResults
from gateway.storage.result_store import ResultStore
from gateway.tools.base import Finished, InputRequired
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from tests.fakes.recorded_events import RecordedEvents

HIDDEN = "vis\u200bible"
URI = "docs://page"


def contents(text: str) -> JsonObject:
    return {"contents": [{"uri": URI, "text": text}]}


def without_password(text: str) -> str:
    return text.replace("hunter2", "***")


class LoggedGate:
    """A gate for reads, with the events that it emits and its limiter."""

    def __init__(self, store: ResultStore | None = None, *, is_local: bool = False, mask: Any = None, **rules: Any) -> None:
        self.events, self.limiter = RecordedEvents(), Limiter(1)
        gate = SourceGate("docs", GateServices(self.events, store=store, mask=mask), self.limiter)
        self.gate = ReadGate(gate, SourcePolicy.model_validate(rules), is_local=is_local)

    async def read(self, result: Any, *, method: str = "resources/read", ctx: CallContext | None = None, **settings: Any) -> Any:
        async def work(inner: CallContext) -> Finished | InputRequired:
            if isinstance(result, Exception):
                raise result
            if result is None:
                await anyio.sleep_forever()
            given: Any = result(inner) if callable(result) else result
            return given if isinstance(given, Finished | InputRequired) else Finished(given)

        return await self.gate.read(Read(method=method, name=URI, **settings), ctx or CallContext(), work)

    @property
    def last(self) -> tuple[str, str, str, str, Any, Any]:
        event = self.events.recent()[-1]
        return event.kind, event.source, event.name, event.principal, event.fields["method"], event.fields["outcome"]


async def test_finished_read_is_recorded_and_returned_unchanged() -> None:
    gate, result = LoggedGate(), contents("plain")
    read = await gate.read(result, ctx=CallContext(CallFacts(principal=Principal("key:ada"))))
    assert read.result is result
    assert gate.last == ("read.finished", "docs", URI, "key:ada", "resources/read", "complete")
    milliseconds = gate.events.recent()[-1].fields["milliseconds"]
    assert 0 <= milliseconds < 60_000 and milliseconds == round(milliseconds, 3)
    assert (len(gate.events.recent()), gate.limiter.held) == (1, 0)


async def test_read_with_requests_for_input_is_recorded_and_returned() -> None:
    gate, asking = LoggedGate(), InputRequired({"q": {"method": "roots/list", "params": {}}})
    assert await gate.read(asking) is asking
    assert gate.last[-1] == "input_required"


async def test_too_large_request_for_input_of_read_is_refused() -> None:
    with pytest.raises(PolicyDenied, match="resources/read of 'docs://page' was refused by maxResultBytes") as refused:
        await LoggedGate(maxResultBytes=1_024).read(InputRequired({"q": {"method": "x" * 2_000}}))
    assert (refused.value.rule, refused.value.subject) == ("maxResultBytes", URI)


async def test_failed_read_is_recorded_with_error_class_and_masked() -> None:
    gate = LoggedGate(mask=without_password)
    with pytest.raises(Rejected) as failed:
        await gate.read(Rejected("password hunter2", server="docs", code=-32602, data={"said": "hunter2"}))
    assert (str(failed.value), failed.value.data) == ("password ***", {"said": "***"})
    assert (gate.last[-1], gate.limiter.held) == ("Rejected", 0)


async def test_unexpected_exception_in_read_is_recorded_as_error() -> None:
    gate = LoggedGate()
    with pytest.raises(ZeroDivisionError):
        await gate.read(ZeroDivisionError())
    assert (gate.last[-1], gate.limiter.held) == ("error", 0)


async def test_read_over_its_deadline_is_recorded_as_timeout() -> None:
    gate = LoggedGate(timeoutSeconds=0.02)
    with anyio.fail_after(20), pytest.raises(UpstreamTimeout, match=r"'docs://page' took longer than 0\.02 s; .* of 'docs'") as ended:
        await gate.read(None)
    assert (ended.value.server, gate.last[-1], gate.limiter.held) == ("docs", "timeout", 0)


@pytest.mark.parametrize(
    ("rules", "is_local", "own_rule", "text"),
    [
        ({}, False, None, "visible"),
        ({"hiddenText": "allow"}, False, None, HIDDEN),
        ({}, True, None, HIDDEN),
        ({}, False, "allow", HIDDEN),
        ({"hiddenText": "allow"}, False, "strip", "visible"),
    ],
)
async def test_hidden_text_is_removed_unless_source_or_read_allows_it(
    rules: dict[str, Any], is_local: bool, own_rule: Any, text: str
) -> None:
    read = await LoggedGate(is_local=is_local, **rules).read(contents(HIDDEN), hidden_text=own_rule)
    assert read.result["contents"][0]["text"] == text


async def test_hidden_text_is_refused_by_policy() -> None:
    with pytest.raises(PolicyDenied, match="resources/read of 'docs://page' was refused by hiddenText") as refused:
        await LoggedGate(hiddenText="refuse").read(contents(HIDDEN))
    assert (refused.value.rule, refused.value.subject) == ("hiddenText", URI)


async def test_too_large_read_without_keeper_is_refused() -> None:
    gate = LoggedGate(maxResultBytes=1_024)
    with pytest.raises(PolicyDenied, match="was refused by maxResultBytes") as refused:
        await gate.read(contents("x" * 2_000))
    assert (refused.value.rule, refused.value.subject, gate.last[0], gate.last[-1]) == ("maxResultBytes", URI, "read.refused", "refused")


async def test_read_over_max_kept_bytes_is_refused(tmp_path: Path) -> None:
    store = FolderResults(tmp_path / "results", ttl_seconds=60, max_bytes_per_owner=1_000_000)
    with pytest.raises(PolicyDenied) as refused:
        await LoggedGate(store, maxResultBytes=1_024, maxKeptBytes=1_024).read(contents("x" * 5_000))
    assert refused.value.rule == "maxKeptBytes"


@pytest.mark.parametrize("method", ["resources/read", "prompts/get"])
async def test_too_large_read_is_shortened_in_the_form_of_its_method(tmp_path: Path, method: str) -> None:
    store = FolderResults(tmp_path / "results", ttl_seconds=60, max_bytes_per_owner=1_000_000)
    text = "".join(f"line {number}\n" for number in range(900))
    prompt: JsonObject = {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
    read = await LoggedGate(store, maxResultBytes=1_024).read(prompt if method == "prompts/get" else contents(text), method=method)
    shown = str(read.result["messages"] if method == "prompts/get" else read.result["contents"])
    assert "line 1" in shown and "line 899" not in shown and "read_result" in shown


async def test_key_reads_only_what_its_scopes_cover() -> None:
    gate, ada = LoggedGate(), CallContext(CallFacts(principal=Principal("key:ada", scopes=("resources:docs/docs://*",))))
    assert (await gate.read(contents("plain"), ctx=ada, subject=("resources", URI))).result == contents("plain")
    with pytest.raises(PolicyDenied) as refused:
        await gate.read(contents("plain"), ctx=ada, subject=("prompts", URI))
    assert (refused.value.rule, refused.value.subject) == ("scopes", URI)
    assert (await gate.read(contents("plain"), ctx=ada)).result == contents("plain")


async def test_scopes_of_key_do_not_apply_behind_the_gate() -> None:
    seen: list[CallContext] = []

    def look(inner: CallContext) -> Finished:
        seen.append(inner)
        return Finished(contents("plain"))

    key = Principal("key:ada", scopes=("docs",))
    await LoggedGate().read(look, ctx=CallContext(CallFacts(principal=key)), subject=("resources", URI))
    assert (seen[0].facts.principal.scopes, seen[0].facts.on_behalf_of.scopes) == (None, ("docs",))
