"""`FunctionRules`: decides which Python functions the files of agents and workflows may use, according to the operator's policies.

A policy for a function applies whichever way a file refers to the function: through another module, another attribute, or a wrapper.
`policy.own_sources` contains the decision as pure functions. Used by `agents` and `workflows` when a file is loaded, and by
`gate.own_tools` at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import judge_approval
from gateway.policy.decision import Reject
from gateway.policy.own_sources import FunctionNames, judge_function
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.function import FunctionTool
from gateway.tools.functions_source import unwrapped

FUNCTION_SOURCE = "function"
"""Id of the source that serves Python functions as tools. Its policy also applies to functions that agent files name as tools, and that
workflow files name as steps."""


class FunctionRules:
    """Decides, by the policies of one configuration, which Python functions the files of agents and workflows may use."""

    def __init__(
        self,
        policies: Callable[[str], SourcePolicy | None],
        served: Callable[[Sequence[object]], Sequence[str]] | None = None,
        events: EventStream | None = None,
    ) -> None:
        """`policies` returns the policy that the operator wrote for a source.

        `served` receives Python objects, and returns the names of the tools of source `function` that run one of them. `events` receives an
        audit event when code is refused, and when code runs while a file is loaded.
        """
        self.policies = policies
        self._served = served
        self._events = events or EventStream()

    def names(self, reference: str, found: object) -> FunctionNames:
        """Return the names by which policies may refer to the Python function `found`.

        `reference` (`package.module:name`) is the name by which a file refers to the function.
        """
        written = reference.rpartition(":")[2]
        chain = unwrapped(found)
        served = list(self._served(chain)) if self._served is not None else []
        own = [name for name in map(_name_of, chain) if name is not None]
        first, *aliases = dict.fromkeys([*served, *own, written])
        return FunctionNames(first, tuple(aliases))

    def judge(self, source: str, reference: str, found: object, *, by_allow: bool = True) -> Reject | None:
        """Return a refusal if policy forbids the agent or workflow `source` to run the Python function `found`; `None` if it may.

        `reference` (`package.module:name`) is the name by which the file of the agent or workflow refers to the function. Without
        `by_allow`, lists of allowed functions (`tools.allow`) are ignored.
        """
        names = self.names(reference, found)
        for key in (FUNCTION_SOURCE, source):
            policy = self.policies(key)
            if policy is not None and (verdict := judge_function(names, policy, key, by_allow=by_allow)) is not None:
                return verdict
        return None

    def admit(self, source: str, reference: str, found: object = None, *, by_allow: bool = True) -> Reject | None:
        """Decide, while the file of the agent or workflow `source` is loaded, whether the file may use a Python object.

        Return the refusal, which is also recorded in the audit log; `None` if the object is allowed. `reference` (`package.module:name`) is
        the object's name in the file, and `found` the imported object. Without `found`, only the name is judged, because the module is not
        imported yet. With `by_allow` false, only rules that deny the object apply.
        """
        verdict = self.judge(source, reference, found, by_allow=by_allow)
        if verdict is not None:
            self._emit("call.refused", source, reference, {"outcome": "refused", "rule": verdict.rule})
        return verdict

    @contextmanager
    def loading(self, source: str, reference: str) -> Generator[None]:
        """Record in the audit log (`call.audited`) that code of an agent's or workflow's file runs inside this context.

        The code runs while the file of `source` is loaded, so it has no caller. `reference` is the name of the code in the file.
        """
        outcome = "failed"
        try:
            yield
            outcome = "complete"
        finally:
            self._emit("call.audited", source, reference, {"outcome": outcome})

    def _emit(self, kind: str, source: str, reference: str, fields: JsonObject) -> None:
        name = reference.rpartition(":")[2]
        self._events.emit(kind, source=source, name=name, fields={**fields, "reference": reference})

    def needs_approval(self, source: str, reference: str, found: object) -> bool:
        """Whether a person must approve each call of the Python function `found` by the agent or workflow `source`.

        The function's author can require an approval. Two policies can, too: the policy of the source `function`, which applies to all
        Python functions, and the policy of the agent or workflow.
        """
        names = self.names(reference, found)
        by_author = getattr(found, "approval_mode", None) == "always_require"
        written = [self.policies(key) or SourcePolicy() for key in (FUNCTION_SOURCE, source)]
        return any(judge_approval(names.name, policy.approval, by_author=by_author) for policy in written)


def _name_of(found: object) -> str | None:
    if isinstance(found, FunctionTool):
        return cast("FunctionTool[..., Any]", found).name
    name = getattr(found, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None
