"""The judge of an agent loop (`AgentLoopMiddleware`): a second model that decides whether the user's request was answered, and why."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from pydantic import BaseModel, Field, ValidationError

from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.json_types import JsonObject
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse

DEFAULT_NEXT_MESSAGE = "Go on with the task. If it is complete, say so."

CRITERIA_PLACEHOLDER = "{{criteria}}"
"""Placeholder in a judge's instructions that is replaced by the criteria for the answer."""

VERDICT_DONE = "VERDICT: DONE"
VERDICT_MORE = "VERDICT: MORE"
"""Last line of a judge model's answer if the agent's work is incomplete; used by models without structured output.

If the work is complete, the last line is `VERDICT_DONE`. Neither text contains the other, so a search in the answer finds the right one.
"""

DEFAULT_JUDGE_INSTRUCTIONS = (
    "You judge the work of an agent. You see what a user asked for and what the agent answered last. "
    "Set `answered` to true only if everything that was asked for is there, else to false, and say why in `reasoning`, briefly. "
    f"If you cannot answer in that form, end with a line that is exactly '{VERDICT_DONE}' or, where something is missing, '{VERDICT_MORE}'."
    + CRITERIA_PLACEHOLDER
)


class JudgeVerdict(BaseModel):
    """The verdict of a judge model: whether an agent's answer is complete, and why."""

    answered: bool = Field(description="True if the whole request has been answered and every criterion is met, else false.")
    reasoning: str = Field(default="", description="Why, briefly; what is missing.")


def judge_predicate(client: object, instructions: str) -> Callable[..., Awaitable[tuple[bool, str | None]]]:
    """Return a predicate for `AgentLoopMiddleware` that is true while the judge model finds that the user's request was not answered.

    The predicate also returns the judge's reasons, as feedback for the agent's next run. The judge receives the original messages
    unchanged, including images and files. It has no tools and no session.
    """
    judge = cast("SupportsChatGetResponse", client)

    async def ask(*, last_result: AgentResponse, original_messages: Sequence[Message]) -> tuple[bool, str | None]:
        messages = [
            Message("system", [instructions]),
            Message("user", ["Judge the agent's work. This is what the user asked for:"]),
            *original_messages,
            Message("user", ["This is what the agent answered last:"]),
            *last_result.messages,
            Message("user", ["Has the whole request been answered?"]),
        ]
        response = await judge.get_response(messages, options={"response_format": JudgeVerdict.model_json_schema()})
        verdict = read_verdict(response.text)
        return not verdict.answered, verdict.reasoning or None

    return ask


def read_verdict(text: str) -> JudgeVerdict:
    """Parse the answer of a judge model as JSON, or else search the answer for `VERDICT: …`. Any other answer means "not answered"."""
    try:
        found: JsonObject = json.loads(text)
        return JudgeVerdict.model_validate(found)
    except (ValueError, ValidationError):
        shouted = text.upper()
        return JudgeVerdict(answered=VERDICT_DONE in shouted and VERDICT_MORE not in shouted, reasoning=text.strip())


def criteria_for_judge(criteria: Sequence[str] | None) -> str:
    """Return the criteria for the agent's answer as text for the judge's instructions, or an empty string without criteria."""
    return "" if not criteria else "\n\nThe answer must meet all of these criteria:\n" + "\n".join(f"- {item}" for item in criteria)


def criteria_for_agent(criteria: Sequence[str]) -> str:
    """Return the criteria for the agent's answer as text for the agent's instructions."""
    return "Your answer must meet all of these criteria:\n" + "\n".join(f"- {item}" for item in criteria)


def next_message_after_verdict(*, feedback: str | None = None) -> str:
    """Return the agent's next input after the judge found its answer incomplete: the judge's reasons, or a default text."""
    if not feedback:
        return DEFAULT_NEXT_MESSAGE
    return (
        "Your answer was reviewed and does not yet do everything that was asked for.\n\n"
        f"The reviewer says: {feedback}\n\nGo on, so that the whole request is answered."
    )
