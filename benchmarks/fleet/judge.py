"""Decides about each answer of the load: right, wrong, of another principal, or failed; and whether a failure is excused.

A call's text names its principal and has a number that no other call has. The server behind the gateways returns the text, so any mix-up
shows. A failure is excused only if nginx had sent the request to a replica that was killed while the request was in flight, and if the
response is an MCP error that tells the client that it may send the call again. The other excuse is an event stream that broke: after the
head of a response, no error can be sent.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fleet.clients import Answer

RETRYABLE_STATUSES = (502, 503, 504)
"""HTTP statuses after which a client may send a request again that does no harm if it runs twice."""

RETRYABLE_WORDS = ("try again", "send it again", "send the request again", "retry")
"""Words of a JSON-RPC error that tell the client to send the request again."""

KILL_SECONDS = 0.5
"""Seconds after a kill during which a request may still reach the killed replica's connections, before nginx knows about them."""


class Failure(enum.Enum):
    """What a client learns from a failed attempt."""

    RETRYABLE = "retryable error"
    """The response is a JSON-RPC error or a failed tool result that says that the client may send the call again."""
    STREAM_BROKE = "stream broke"
    """The event stream with the response broke."""
    BARE = "no retryable error"
    """Anything else, such as an HTML page, a closed connection, or an error that does not say what to do."""


class Verdict(enum.Enum):
    """What an answer is."""

    RIGHT = "right"
    WRONG = "wrong"
    FOREIGN = "of another principal"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt of a call."""

    call: str
    """The text of the call, which begins with the principal."""
    attempt: str
    """Name of the attempt in nginx's log."""
    era: str
    began: float
    """Seconds since the epoch."""
    seconds: float
    verdict: Verdict
    problem: str = ""
    """What the client got instead of a result."""
    failure: Failure | None = None
    """What the client learned, if the attempt failed."""
    is_last: bool = False
    """Whether the client gives up after this attempt, so that the call is lost."""

    @property
    def ended(self) -> float:
        return self.began + self.seconds


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica that was killed, by its address, at a time in seconds since the epoch."""

    address: str
    at: float


@dataclass
class Judgement:
    """All that the judge found in one phase."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list[str])
    """Wrong answers and answers of another principal."""
    foreign: int = 0
    excused: Counter[str] = field(default_factory=Counter[str])
    """Failures in flight at a killed replica, by the error that the client got."""
    violations: list[str] = field(default_factory=list[str])
    """All other failures: not in flight at a killed replica, or without a retryable error."""
    failures: Counter[Failure] = field(default_factory=Counter[Failure])
    """All failures, by what the client learned."""
    lost: int = 0
    """Calls that failed in every attempt."""

    @property
    def is_clean(self) -> bool:
        return not self.wrong and not self.violations and not self.lost

    def forms(self) -> Counter[str]:
        """Return how often each form of a violation occurred, without the names of calls."""
        return Counter(violation.partition(": ")[2] for violation in self.violations)


def texts(message: dict[str, Any]) -> str | None:
    """Return the text of a tool result, or `None` if the message is not the response of a successful tool call."""
    result = _result(message)
    content = _content(result)
    return content[0].get("text") if content and not result.get("isError") else None


def _result(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] | None = message.get("result")
    return found or {}


def _content(result: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] | None = result.get("content")
    return found or []


def weigh(answer: Answer, number: int, call: str) -> tuple[Verdict, str, Failure | None]:
    """Return the verdict about the answer to a call with this request id, what the client got, and what it learned if the call failed."""
    message = answer.message()
    if answer.status != 200 or message is None:
        error = _error(message) if message is not None else ""
        return Verdict.FAILED, f"HTTP {answer.status} {error}".rstrip(), _failure(error if answer.status in RETRYABLE_STATUSES else "")
    found = texts(message)
    if found is not None:
        if found == call and message.get("id") == number:
            return Verdict.RIGHT, "", None
        is_foreign = found.partition(":")[0] != call.partition(":")[0]
        return (Verdict.FOREIGN if is_foreign else Verdict.WRONG), f"{found[:60]!r} with id {message.get('id')}", None
    if "error" in message or _result(message).get("isError"):
        what = _error(message)
        return Verdict.FAILED, what, _failure(what)
    return Verdict.WRONG, f"not a tool result: {str(message)[:100]}", None


def _failure(error: str) -> Failure:
    return Failure.RETRYABLE if any(word in error.lower() for word in RETRYABLE_WORDS) else Failure.BARE


def _error(message: dict[str, Any]) -> str:
    if "error" in message:
        error: dict[str, Any] = message["error"]
        return f"error {error.get('code')} {str(error.get('message'))[:160]}"
    content = _content(_result(message))
    return f"tool error {str(content[0].get('text') if content else '')[:160]}"


def judge(outcomes: Iterable[Outcome], kills: Sequence[Kill], sent_to: dict[str, tuple[str, ...]]) -> Judgement:
    """Judge all attempts of a phase. `sent_to` has the replicas to which nginx sent each failed attempt."""
    done = Judgement()
    for outcome in outcomes:
        done.answers += 1
        if outcome.verdict is Verdict.RIGHT:
            continue
        if outcome.verdict is not Verdict.FAILED:
            done.wrong.append(f"{outcome.call}: {outcome.verdict.value}: {outcome.problem}")
            done.foreign += outcome.verdict is Verdict.FOREIGN
            continue
        done.lost += outcome.is_last
        done.failures[outcome.failure or Failure.BARE] += 1
        addresses = sent_to.get(outcome.attempt, ())
        was_in_flight = any(
            kill.address == address and outcome.began <= kill.at + KILL_SECONDS and outcome.ended >= kill.at
            for kill, address in itertools.product(kills, addresses)
        )
        if was_in_flight and outcome.failure in (Failure.RETRYABLE, Failure.STREAM_BROKE):
            done.excused[outcome.problem] += 1
        else:
            why = "no retryable error" if was_in_flight else "not in flight at a killed replica"
            place = " ".join(addresses).replace(":", "#") or "nginx"
            sent = f"{outcome.call} at {outcome.began:.3f} via {place} in {outcome.seconds:.3f} s"
            done.violations.append(f"{sent}: {why}: {outcome.era}: {outcome.problem}")
    return done
