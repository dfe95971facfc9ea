"""`RemoteTask`: what one remote A2A agent does with one message, followed to its end.

Turns the protocol's stream into parts of a run, once each, and remembers what has to be known to go on: after a dropped
stream, after a question, or in another process (`A2AContinuationToken`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a.types import Artifact, Part, Role, StreamResponse, Task, TaskState, TaskStatus

from gateway.agents.remote.parts import to_contents, to_text
from gateway.errors import AgentError
from gateway.types.content import Content
from gateway.types.responses import AgentResponseUpdate, ContinuationToken

ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
_PROBLEMS = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_CANCELED: "was cancelled",
    TaskState.TASK_STATE_REJECTED: "was rejected",
    TaskState.TASK_STATE_AUTH_REQUIRED: "needs a sign-in",
}


def beyond(given: Sequence[Part], whole: Sequence[Part]) -> list[Part]:
    """What a whole artifact has after the part of it that was given; all of it where it is another one now.

    A server may keep the chunks of a text as one part.
    """
    same = next((number for number, (old, new) in enumerate(zip(given, whole, strict=False)) if old != new), min(len(given), len(whole)))
    left, new = given[same:], list(whole[same:])
    if not left:
        return new
    if not all(part.WhichOneof("content") == "text" for part in (*left, *new)):
        return list(whole)
    before, now = "".join(part.text for part in left), "".join(part.text for part in new)
    if not now.startswith(before):
        return list(whole)
    return [Part(text=now.removeprefix(before))] if now != before else []


class RemoteTask:
    """The state of one exchange. `id` is empty while the remote agent has opened no task, which it need not do."""

    def __init__(self, agent: str, task_id: str = "", context_id: str = "") -> None:
        """`agent` names the remote agent in errors."""
        self._agent = agent
        self.id = task_id
        self.context_id = context_id
        self.is_over = False
        """Nothing more will come: it ended, was answered by a plain message, or waits for an answer."""
        self.waits = False
        """It waits for the answer to a question; the next message goes to the same task."""
        self.note: Callable[[ContinuationToken], Awaitable[None]] | None = None
        """Told the token, once, as soon as the remote agent opened a task."""
        self._given: dict[str, list[Part]] = {}
        """What of each artifact was given already."""
        self._said: set[str] = set()

    @property
    def token(self) -> ContinuationToken:
        """What to hand in again to go on with this task."""
        return {"task_id": self.id, "context_id": self.context_id}

    async def noted(self) -> None:
        """Have the token noted, where it is time for that."""
        if self.note is not None and self.id and not self.is_over:
            note, self.note = self.note, None
            await note(self.token)

    def take(self, item: StreamResponse) -> list[AgentResponseUpdate]:
        """The parts of the run in one item of the stream.

        Raises:
            AgentError: The task ended badly.
        """
        match item.WhichOneof("payload"):
            case "message":
                self.context_id = item.message.context_id or self.context_id
                self.is_over = True
                return [self._update(to_contents(item.message.parts), item.message.message_id)]
            case "task":
                return self.take_task(item.task)
            case "artifact_update":
                event = item.artifact_update
                self._know(event.task_id, event.context_id)
                return self._artifact(event.artifact, is_more=event.append)
            case "status_update":
                event = item.status_update
                self._know(event.task_id, event.context_id)
                return self._status(event.status)
            case _:
                return []

    def take_task(self, task: Task) -> list[AgentResponseUpdate]:
        """The parts of the run in a task's whole state that were not given yet.

        Raises:
            AgentError: The task ended badly.
        """
        self._know(task.id, task.context_id)
        updates = [update for artifact in task.artifacts for update in self._artifact(artifact, is_more=False)]
        updates += self._status(task.status)
        if self.is_over and not self._given and not updates:
            answer = next((message for message in reversed(task.history) if message.role == Role.ROLE_AGENT), None)
            return [self._update(to_contents(answer.parts), answer.message_id)] if answer is not None else []
        return updates

    def _know(self, task_id: str, context_id: str) -> None:
        self.id = task_id or self.id
        self.context_id = context_id or self.context_id

    def _artifact(self, artifact: Artifact, *, is_more: bool) -> list[AgentResponseUpdate]:
        """What is new in an artifact's next parts (`is_more`), or in the whole of it."""
        given = self._given.setdefault(artifact.artifact_id, [])
        parts = list(artifact.parts)
        new = parts if is_more else beyond(given, parts)
        self._given[artifact.artifact_id] = [*given, *parts] if is_more else parts
        return [self._update(to_contents(new), artifact.artifact_id)] if new else []

    def _status(self, status: TaskStatus) -> list[AgentResponseUpdate]:
        said = to_text(status.message) if status.HasField("message") else ""
        state = status.state
        if state in _PROBLEMS:
            self.is_over = True
            raise AgentError(f"The remote agent {self._agent!r}: the task {_PROBLEMS[state]}{f': {said}' if said else '.'}")
        if state == TaskState.TASK_STATE_INPUT_REQUIRED:
            self.is_over = self.waits = True
            text = said or "The remote agent needs more input."
            return [self._update([Content("text", text=text, id=f"{self.id}:input", user_input_request=True)], None)]
        if state in ENDED:
            self.is_over = True
            # Results are artifacts; a closing message is the answer only where there are none.
            return [self._update(to_contents(status.message.parts), status.message.message_id)] if said and not self._given else []
        if not said or status.message.message_id in self._said:
            return []
        self._said.update({status.message.message_id} - {""})
        return [self._update([Content.from_text_reasoning(said)], None)]

    def _update(self, contents: list[Content], message_id: str | None) -> AgentResponseUpdate:
        return AgentResponseUpdate(contents, "assistant", message_id=message_id or None, response_id=self.id or message_id or None)
