"""`AgentModeProvider`: gives an agent modes with their own rules, such as `plan` and `execute`. The API is agent-framework's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from gateway.json_types import JsonObject
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.tools.run_state_tool import RunStateTool
from gateway.types.messages import Message

DEFAULT_MODE_SOURCE_ID = "agent_mode"

DEFAULT_MODE_DESCRIPTIONS: Mapping[str, str] = {
    "plan": (
        "Work out with the user what is to be done.\n"
        "1. Read what you need to understand the request; change nothing.\n"
        "2. Ask about what is unclear, one question at a time, with the options you see.\n"
        "3. Write the plan down, as todo items if you have a todo list, and show it.\n"
        "4. When the user agrees, switch to execute mode with `mode_set` and carry it out."
    ),
    "execute": (
        "Carry out what was agreed, on your own.\n"
        "1. Without a plan, make one first from the request.\n"
        "2. Do not stop to ask: if something is open, choose the most sensible option, note the choice and continue.\n"
        "3. Tick off what is done, and continue until the whole result is there."
    ),
}
"""The default modes: maps a mode's name to the rules that the agent receives for the mode."""

DEFAULT_MODE_INSTRUCTIONS = """\
## Mode

You work in one of several modes, and each has its own rules. You are now in the {current_mode} mode.
The user may switch it between two messages, so follow the current one. Switch with `mode_set` only if the user asked for it or the
mode's own rules say so; `mode_get` returns the current mode.

{available_modes}"""

DEFAULT_MODE_CHANGE_NOTIFICATION = (
    "[The mode was switched from {previous_mode} to {current_mode}. Follow the rules of {current_mode} from now on.]"
)

_CURRENT = "current_mode"
_PREVIOUS = "previous_mode_for_notification"


def get_agent_mode(
    session: AgentSession,
    *,
    source_id: str = DEFAULT_MODE_SOURCE_ID,
    default_mode: str | None = None,
    available_modes: Sequence[str] | None = None,
) -> str:
    """Return the agent's current mode in a session, in lower case. A missing or unknown mode is set to the default, or to the first mode.

    Raises:
        ValueError: `default_mode` is not in `available_modes`, or two modes have the same name.
    """
    modes = _by_name(available_modes or tuple(DEFAULT_MODE_DESCRIPTIONS))
    default = next(iter(modes)) if default_mode is None else _known(default_mode, modes)
    state = _state(session, source_id)
    current = state.get(_CURRENT)
    if not isinstance(current, str) or current.strip().lower() not in modes:
        state[_CURRENT] = default
        return default
    return current.strip().lower()


def set_agent_mode(
    session: AgentSession, mode: str, *, source_id: str = DEFAULT_MODE_SOURCE_ID, available_modes: Sequence[str] | None = None
) -> str:
    """Switch the agent's mode in a session, and return the mode's name in lower case. The agent is informed of a change in its next run.

    Raises:
        ValueError: The mode does not exist, or two modes have the same name.
    """
    chosen = _known(mode, _by_name(available_modes or tuple(DEFAULT_MODE_DESCRIPTIONS)))
    state = _state(session, source_id)
    previous = state.get(_CURRENT)
    state[_CURRENT] = chosen
    if isinstance(previous, str) and previous != chosen:
        state[_PREVIOUS] = previous
    return chosen


class AgentModeProvider(ContextProvider):
    """Context provider that informs an agent of its current mode and the mode's rules, and adds tools to read and switch the mode."""

    def __init__(
        self,
        source_id: str = DEFAULT_MODE_SOURCE_ID,
        *,
        default_mode: str | None = None,
        mode_descriptions: Mapping[str, str] | None = None,
        instructions: str | None = None,
    ) -> None:
        """Configure the modes. `mode_descriptions` maps the name of a mode to its rules for the agent.

        In `instructions`, `{available_modes}` and `{current_mode}` are replaced.

        Raises:
            ValueError: `mode_descriptions` is empty, two modes have the same name, or `default_mode` is not one of the modes.
        """
        super().__init__(source_id)
        given = DEFAULT_MODE_DESCRIPTIONS if mode_descriptions is None else mode_descriptions
        if not given:
            raise ValueError("mode_descriptions must have at least one mode.")
        self._shown = _by_name(given)
        self.mode_descriptions = {name.strip().lower(): text for name, text in given.items()}
        self.available_modes = tuple(self._shown)
        self.default_mode = self.available_modes[0] if default_mode is None else _known(default_mode, self._shown)
        self.instructions = instructions

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the mode's instructions and tools to the run, and a message to the agent if a program has switched the mode."""
        current = self._current(session)
        previous = _state(session, self.source_id).pop(_PREVIOUS, None)

        async def mode_set(mode: str) -> str:
            """Switch to another mode."""
            chosen = _known(mode, self._shown)
            _state(session, self.source_id)[_CURRENT] = chosen
            return json.dumps({"mode": chosen, "message": f"Mode changed to '{chosen}'."})

        async def mode_get() -> str:
            """Get your current mode."""
            return json.dumps({"mode": self._current(session)})

        rules = "".join(f"### {self._shown[name]}\n\n{text}\n\n" for name, text in self.mode_descriptions.items())
        text = (self.instructions or DEFAULT_MODE_INSTRUCTIONS).replace("{available_modes}", rules).replace("{current_mode}", current)
        context.extend_instructions(self.source_id, [text])
        context.extend_tools(self.source_id, [RunStateTool(mode_set), RunStateTool(mode_get, annotations={"readOnlyHint": True})])
        if isinstance(previous, str) and previous != current:
            names = {"previous_mode": self._shown.get(previous, previous), "current_mode": self._shown[current]}
            context.extend_messages(self, [Message("user", [DEFAULT_MODE_CHANGE_NOTIFICATION.format(**names)])])

    def _current(self, session: AgentSession) -> str:
        return get_agent_mode(session, source_id=self.source_id, default_mode=self.default_mode, available_modes=self.available_modes)


def _state(session: AgentSession, source_id: str) -> JsonObject:
    state: object = session.state.setdefault(source_id, {})
    if not isinstance(state, dict):
        raise TypeError(f"session.state[{source_id!r}] must be a dict, not {type(state).__name__}.")
    return cast("JsonObject", state)


def _by_name(modes: Iterable[str]) -> dict[str, str]:
    """Map the lower-case name of each mode to the name as written. Raises `ValueError` if two modes have the same name."""
    found: dict[str, str] = {}
    for mode in modes:
        if mode.strip().lower() in found:
            raise ValueError(f"Two modes have the name {mode!r}.")
        found[mode.strip().lower()] = mode.strip()
    return found


def _known(mode: str, modes: Mapping[str, str]) -> str:
    name = mode.strip().lower()
    if name not in modes:
        raise ValueError(f"Unknown mode {mode!r}; the modes are {', '.join(repr(shown) for shown in modes.values())}.")
    return name
