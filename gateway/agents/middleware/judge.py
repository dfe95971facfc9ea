"""The judge of an agent loop: a second model says whether the request was answered, and why not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from pydantic import BaseModel, Field, ValidationError

from gateway.json_types import JsonObject
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, ChatResponse

CRITERIA_PLACEHOLDER = "{{criteria}}"
"""In a judge's instructions: where the criteria go."""

VERDICT_DONE = "VERDICT: DONE"
VERDICT_MORE = "VERDICT: MORE"
"""What a model without structured output ends its answer with; neither is part of the other."""

DEFAULT_JUDGE_INSTRUCTIONS = (
    "You judge the work of an agent. You see what a user asked for and what the agent answered last. "
    "Set `answered` to true only if everything that was asked for is there, else to false, and say why in `reasoning`, briefly. "
    f"If you cannot answer in that form, end with a line that is exactly '{VERDICT_DONE}' or, where something is missing, '{VERDICT_MORE}'."
    + CRITERIA_PLACEHOLDER
)


class JudgeVerdict(BaseModel):
    """What the judge says."""

    answered: bool = Field(description="True if the whole request has been answered and every criterion is met, else false.")
    reasoning: str = Field(default="", description="Why, briefly; what is missing.")


class Judge(Protocol):
    """A chat client, as far as judging needs one."""

    def get_response(self, messages: Sequence[Message], *, options: ChatOptions | None = None) -> Awaitable[ChatResponse]:
        """One model call."""
        ...


def judge_predicate(client: object, instructions: str) -> Callable[..., Awaitable[tuple[bool, str | None]]]:
    """A predicate for a loop: go on while the judge finds the request not answered, with the judge's reasons as feedback.

    The judge gets the original messages as they are, so images and files reach it too. It has no tools and no session.
    """
    judge = cast("Judge", client)

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
    """The judge's answer, by its JSON or by its last line; what is neither counts as not answered."""
    try:
        found: JsonObject = json.loads(text)
        return JudgeVerdict.model_validate(found)
    except (ValueError, ValidationError):
        shouted = text.upper()
        return JudgeVerdict(answered=VERDICT_DONE in shouted and VERDICT_MORE not in shouted, reasoning=text.strip())


def criteria_for_judge(criteria: Sequence[str] | None) -> str:
    """The criteria as they stand in the judge's instructions; nothing where there are none."""
    return "" if not criteria else "\n\nThe answer must meet all of these criteria:\n" + "\n".join(f"- {item}" for item in criteria)


def criteria_for_agent(criteria: Sequence[str]) -> str:
    """The criteria as the agent is told them."""
    return "Your answer must meet all of these criteria:\n" + "\n".join(f"- {item}" for item in criteria)


def next_message_after_verdict(*, feedback: str | None = None) -> str | None:
    """What the agent is told after a verdict; `None` where there are no reasons to tell."""
    if not feedback:
        return None
    return (
        "Your answer was reviewed and does not yet do everything that was asked for.\n\n"
        f"The reviewer says: {feedback}\n\nGo on, so that the whole request is answered."
    )
