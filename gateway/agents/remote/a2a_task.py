"""`RemoteTask`: the state of one exchange with a remote A2A agent, from the sending of a message to the end of the remote task.

It converts A2A events to updates, so that each part of an answer appears once. It stores the ids with which the exchange continues after a
lost stream, after a question of the agent, or in another process (`ContinuationToken`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a.types import Artifact, Part, Role, StreamResponse, Task, TaskState, TaskStatus

from gateway.agents.remote.a2a_messages import to_contents, to_text
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
    """Return the parts of an artifact (`whole`) that follow the already received parts (`given`).

    If the artifact does not begin with `given`, return all of its parts. Texts are joined before they are compared, because a server may
    merge the chunks of a text into one part.
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
    """The state of one exchange with a remote A2A agent: a message, and the task or the plain message that answers it.

    `id` is empty until the remote agent opens a task.
    """

    def __init__(self, agent: str, task_id: str = "", context_id: str = "") -> None:
        """Create the state of an exchange, which is new or continues a known task. `agent` is the remote agent's name in error texts."""
        self._agent = agent
        self.id = task_id
        self.context_id = context_id
        self.is_over = False
        """Whether no more updates will arrive: the task ended, a plain message was the answer, or the task waits for input."""
        self.waits = False
        """Whether the task waits for the answer to a question of the remote agent; the next message is then sent to the same task."""
        self.note: Callable[[ContinuationToken], Awaitable[None]] | None = None
        """Function that receives the continuation token once, as soon as the remote agent opens a task."""
        self._given: dict[str, list[Part]] = {}
        """Parts received of each artifact (output of the task), by artifact id."""
        self._said: set[str] = set()

    @property
    def token(self) -> ContinuationToken:
        """The continuation token, with which another `RemoteTask` continues this task."""
        return {"task_id": self.id, "context_id": self.context_id}

    async def noted(self) -> None:
        """Pass the continuation token to the function `note`, once, if the remote agent has opened a task that has not ended."""
        if self.note is not None and self.id and not self.is_over:
            note, self.note = self.note, None
            await note(self.token)

    def take(self, item: StreamResponse) -> list[AgentResponseUpdate]:
        """Record one event of the A2A stream, and return the updates for it.

        Raises:
            AgentError: The task failed, was cancelled or rejected, or needs a sign-in.
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
                self._store_ids(event.task_id, event.context_id)
                return self._artifact(event.artifact, is_more=event.append)
            case "status_update":
                event = item.status_update
                self._store_ids(event.task_id, event.context_id)
                return self._status(event.status)
            case _:
                return []

    def take_task(self, task: Task) -> list[AgentResponseUpdate]:
        """Record the state of a remote task, and return updates for the parts of the task that were not received before.

        Raises:
            AgentError: The task failed, was cancelled or rejected, or needs a sign-in.
        """
        self._store_ids(task.id, task.context_id)
        updates = [update for artifact in task.artifacts for update in self._artifact(artifact, is_more=False)]
        updates += self._status(task.status)
        if self.is_over and not self._given and not updates:
            answer = next((message for message in reversed(task.history) if message.role == Role.ROLE_AGENT), None)
            return [self._update(to_contents(answer.parts), answer.message_id)] if answer is not None else []
        return updates

    def _store_ids(self, task_id: str, context_id: str) -> None:
        self.id = task_id or self.id
        self.context_id = context_id or self.context_id

    def _artifact(self, artifact: Artifact, *, is_more: bool) -> list[AgentResponseUpdate]:
        """Return an update with the new parts of an artifact.

        With `is_more`, `artifact` contains only its next parts, otherwise all parts.
        """
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
            # The answer is in the artifacts; the status message is the answer only if the task has no artifacts.
            return [self._update(to_contents(status.message.parts), status.message.message_id)] if said and not self._given else []
        if not said or status.message.message_id in self._said:
            return []
        self._said.update({status.message.message_id} - {""})
        return [self._update([Content.from_text_reasoning(said)], None)]

    def _update(self, contents: list[Content], message_id: str | None) -> AgentResponseUpdate:
        return AgentResponseUpdate(contents, "assistant", message_id=message_id or None, response_id=self.id or message_id or None)
