"""`RunStateTool`: a tool that changes only the state of an agent's run. Used by context providers and by `BaseAgent.as_tool`."""

from __future__ import annotations

from gateway.tools.function import FunctionTool, P, R


class RunStateTool(FunctionTool[P, R]):
    """A `FunctionTool` that changes only the state of an agent's run, such as the session or the tools of the run.

    A resumed durable task (a background call that continues after a restart) calls the tool again instead of returning a recorded result,
    because the resumed run starts without this state.
    """

    records_steps = True
    """Tells the gate not to record calls of the tool as steps of a durable task."""
