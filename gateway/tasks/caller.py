"""`TaskCaller`: receives the progress and the requests for input (questions) of a call that runs as a background task.

Progress becomes the status message of the task. Questions and answers are stored with the task (`TaskRow.asked`). After a restart, the call
runs again and asks the same questions. A durable key (`CallContext.question`) identifies a question at every attempt of the task: the
question keeps the name under which clients see it, and gets its recorded answer. A question without a durable key becomes a new question.
While a client still waits for the result of the call (`inline_call`), questions and progress go to that client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio

from gateway.errors import ASK_AGAIN, InputExpired
from gateway.gate.approvals import INPUT_REQUIRED
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.framing import quote
from gateway.policy.input_answers import again
from gateway.storage.record_types import forget, is_open
from gateway.storage.shared_clock import shared_now
from gateway.tasks.open_input_requests import KEY, shown_request
from gateway.tasks.task import Task
from gateway.tools.ports import Caller, ClientProfile, LogLevel, capability_of, undeclared
from gateway.tools.progress_text import NewLines

MESSAGE_SECONDS = 0.5
"""Minimum seconds between two stored changes of a task's status message. A message about required input is stored at once."""

BEAT_STEP = 0.001
"""Amount by which a heartbeat (a progress notification that only shows that the call still runs) raises the progress value.

MCP requires increasing values, so the step is small: the next value that the call itself reports must still be higher.
"""

CLOCK_CHECK_SECONDS = 60.0
"""Seconds between checks whether an unanswered question has expired, because a timer does not run while the machine is suspended."""

MAX_MESSAGE = 2_000
"""Maximum length of a task's status message, in characters; a longer message is cut."""


def fit_message(message: str) -> str:
    """Return a text as a status message: at most `MAX_MESSAGE` characters long, and without characters that databases reject."""
    return message[:MAX_MESSAGE].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class TaskCaller:
    """Implements `Caller` (the receiver of progress, logs and requests for input) for the call that one task runs.

    It passes them to the client while one waits for the result. Otherwise it stores progress and requests with the task, and drops logs.
    """

    def __init__(
        self,
        task: Task,
        client: ClientProfile,
        save: Callable[[Task], Awaitable[None]],
        *,
        ask_timeout_seconds: float,
        live: Caller | None = None,
        live_timeout_seconds: float = 3600.0,
    ) -> None:
        """Store the arguments.

        `client` has the capabilities of the client, and `save` stores the task. A question of a task waits `ask_timeout_seconds` for its
        answer. If a client still waits for the result, `live` is the `Caller` that reaches this client, and the client has
        `live_timeout_seconds` for each answer.
        """
        self._task = task
        self._client = client
        self._save = save
        self._ask_timeout = ask_timeout_seconds
        self._live = live
        self._live_timeout = live_timeout_seconds
        self._asked = len(task.row.asked)
        self._shown: list[str] = []
        """The messages passed to `shows` whose `with` blocks have not ended. The status message shows them instead of progress."""
        self._judges: set[str] = set()
        """Keys of the questions whose answers the code inside the task checks and may refuse.

        A key is durable: it identifies the question at every attempt of the task.
        """
        self._unclaimed: set[str] = set()
        """Names of open questions that were stored without a durable key, and that the resumed task has not asked again yet.

        A durable key identifies a question at every attempt of a task. Earlier versions (`STEPS_VERSION` 1) stored no durable keys.
        """
        self._saved_at = float("-inf")
        self._progress = 0.0
        self._total: float | None = None
        self._lines = NewLines()
        self.asking = 0
        """Number of questions that were sent to the client which waits for the result, and have no answer yet."""
        self.answered_at = float("-inf")
        """Time at which the client that waits for the result last answered a question, by the event loop's clock."""

    def detach(self) -> Caller | None:
        """Stop sending progress and questions to the client that waits for the result; return the `Caller` that reached the client."""
        live, self._live = self._live, None
        return live

    def attach(self, live: Caller | None) -> None:
        """Undo `detach`: send progress and questions again to the client that waits for the result.

        `live` is what `detach` returned: the `Caller` that reaches the client, or `None` if no client waits.
        """
        self._live = live
        self._task.notify()

    async def beat(self, message: str) -> None:
        """Send a progress notification to the client that waits for the result, if any, to show that the call still runs."""
        if self._live is not None:
            self._progress += BEAT_STEP
            await self._live.progress(self._progress, self._total, self._lines.take(message))

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress to the client that waits for the result, or, if no client waits, store it as the status message of the task.

        Status messages are stored at most every `MESSAGE_SECONDS`; a message about required input is stored at once.
        """
        if self._live is not None:
            self._progress, self._total = max(progress, self._progress + BEAT_STEP), total
            self._task.row.message = fit_message(message or self._task.message)
            self._lines.take(message)
            await self._live.progress(self._progress, total, message)
            return
        now = anyio.current_time()
        message = fit_message("; ".join(self._shown) or message or "")
        is_urgent = INPUT_REQUIRED in (self._task.message[: len(INPUT_REQUIRED)], message[: len(INPUT_REQUIRED)])
        if message and message != self._task.message and (is_urgent or now - self._saved_at >= MESSAGE_SECONDS):
            self._saved_at = now
            self._task.row.message = message
            await self._save(self._task)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message to the client that waits for the result. If no client waits, drop it, because tasks have no logs in MCP."""
        if self._live is not None:
            await self._live.log(level, data, logger)

    @contextmanager
    def shows(self, message: str) -> Generator[None]:
        """Context manager: show `message` as the status message of the task. After the context, the next progress replaces it."""
        self._shown.append(message)
        try:
            yield
        finally:
            self._shown.remove(message)

    def judges(self, key: str) -> None:
        """Record that the code inside the task checks the answers to the question `key`, and may refuse them.

        `key` is a durable key, which identifies the question at every attempt of the task.
        """
        self._judges.add(key)

    async def judged(self, key: str, problem: str) -> bool:
        """Record that the code inside the task used the answer to the question `key`, or, with `problem`, why it refused the answer.

        A refusal reopens the question. The refusal is stored when the code asks the question again. Returns `False` if the question has no
        answer.
        """
        found = ((name, item) for name, item in self._task.row.asked.items() if item.get("step") == key and "answer" in item)
        if (asked := next(found, None)) is None:
            return False
        name, item = asked
        if problem:
            del item["answer"]
            item |= {"refusals": item.get("refusals", 0) + 1, "problem": problem}
            self._task.unsaved.add(name)
            for other in [other for other in self._task.row.asked.values() if str(other.get("step")).startswith(f"{key}~")]:
                forget(other)  # older versions of the gateway repeated a refused question under another key
        elif not item.get("used"):
            item["used"] = True
            await self._save(self._task)
        return True

    def resume(self, version: int) -> bool:
        """Withdraw the open questions of earlier attempts that the resumed task cannot find again; return whether there were any.

        The resumed task finds a question by its durable key, so questions without a durable key are withdrawn. If `version`, the task's
        `STEPS_VERSION`, is 1, the questions were stored before there were durable keys. These questions stay open, and the task finds them
        by their text.
        """
        self._unclaimed = {name for name, item in self._task.row.asked.items() if is_open(item) and "step" not in item}
        ended = [item for item in self._task.row.asked.values() if is_open(item) and not item.get("step", version == 1)]
        for item in ended:
            forget(item)
        self._task.settle()
        return bool(ended)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input to the client that waits for the result, or else open a question of the task. Return the answer.

        The question is stored with the task. `key` is the durable key by which a resumed task finds the answer.

        Raises:
            InputUnavailable: The client did not declare the capability for this request.
            InputExpired: The answer did not arrive in time. For a question of a task, the time counts from the first attempt that asked.
        """
        if self._live is None and not self._client.can(capability_of(request)):
            raise undeclared(request)
        task = self._task
        name = self._store(request, key)
        item = task.row.asked[name]
        if "answer" in item:
            return item["answer"]
        if self._live is not None:
            return await self._ask_live(self._live, item, request)
        task.row.status = "input_required"
        try:
            await self._save(task)
            while "answer" not in item:
                left = item.get("at", shared_now()) + self._ask_timeout - shared_now()
                if left <= 0:
                    raise _expired(self._ask_timeout)
                with anyio.move_on_after(min(left, CLOCK_CHECK_SECONDS)):
                    await task.changed.wait()
                if self._live is not None and "answer" not in item:
                    return await self._ask_live(self._live, item, request)
        except (anyio.get_cancelled_exc_class(), InputExpired):
            item["withdrawn"] = True  # no code waits for the answer any more, so the question is not shown
            task.settle()
            raise
        return item["answer"]

    async def _ask_live(self, live: Caller, item: JsonObject, request: JsonObject) -> JsonObject:
        answer: JsonObject | None = None
        self.asking += 1
        try:
            with anyio.move_on_after(self._live_timeout):
                answer = await live.ask(again(request, item["problem"]) if item.get("problem") else request)
        finally:
            self.asking -= 1
            self.answered_at = anyio.current_time()
            if answer is None:
                item["withdrawn"] = True
        if answer is None:
            raise _expired(self._live_timeout)
        item["answer"] = answer
        return answer

    def _store(self, request: JsonObject, key: str) -> str:
        """Return the name under which `TaskRow.asked` stores a question of the task; add the question if it is not stored yet.

        `key` identifies the question when the code of the task runs again. If the stored question with this `key` has the same request, it
        is reused. If it has a different request, the code has changed since then, and a new question is added.
        """
        wanted, shown = shown_request(request)
        asked = self._task.row.asked
        if (known := self._known(key, shown) or self._claim(shown)) is not None:
            asked[known] |= {"step": key, "judged": key in self._judges}
            asked[known].pop("withdrawn", None)
            return known
        for item in asked.values():
            if key and item.get("step") == key and is_open(item):
                forget(item)
        self._asked += 1
        name = wanted if KEY.fullmatch(wanted) else f"ask-{self._asked}"
        while name in asked:
            name = f"{name}-{self._asked}"
        is_own = bool(key) and not wanted
        asked[name] = {"request": shown, "at": shared_now(), "step": key, "own": is_own, "judged": key in self._judges}
        self._task.unsaved.add(name)
        return name

    def _known(self, key: str, shown: JsonObject) -> str | None:
        asked = self._task.row.asked
        return next((name for name, item in asked.items() if key and item.get("step") == key and item["request"] == shown), None)

    def _claim(self, shown: JsonObject) -> str | None:
        """Find the stored question of an old version of Moongate that the resumed task asks again, and return its name.

        The old version (`STEPS_VERSION` 1) stored no durable keys, so this method finds the question by its text.

        Returns `None` if no question without a key has this text, if several have it, or if the question was not open when the task was
        taken over: it may then be an earlier question with the same text.
        """
        asked = self._task.row.asked
        same = [name for name, item in asked.items() if "step" not in item and "request" in item and _is_same(item["request"], shown)]
        return same[0] if len(same) == 1 and same[0] in self._unclaimed else None


def _expired(seconds: float) -> InputExpired:
    return InputExpired(f"Nobody answered within {seconds:g} s, so the task was ended; {ASK_AGAIN}.")


def _is_same(stored: JsonObject, shown: JsonObject) -> bool:
    """Return whether a stored request for input is the same as the request `shown`.

    Older versions stored a workflow's text without the line prefixes that `policy.framing` adds now.
    """
    if stored == shown:
        return True
    before: JsonObject = stored.get("params") or {}
    now: JsonObject = shown.get("params") or {}
    marked = "\n".join(quote(str(before.get("message"))))
    return {**before, "message": marked} == {**now, "message": str(now.get("message")).partition("\n")[2]}
