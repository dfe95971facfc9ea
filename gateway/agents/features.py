"""Creates the context providers and middleware for the keys `files`, `security`, `memory` and `loop-until` of agent files.

Used by `agent_runs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread

from gateway.errors import AgentError
from gateway.policy.root_policy import Access

if TYPE_CHECKING:
    from gateway.agents.conversations import Conversations
    from gateway.agents.definition import LoopUntil, MemoryKey
    from gateway.agents.run_context import AgentMiddleware
    from gateway.chat.chat_context import SupportsChatGetResponse
    from gateway.chat.model_resolver import ModelResolver
    from gateway.config.agents import FileAccess, FlowSecurity
    from gateway.sessions.session_context import ContextProvider


class RootJudge(Protocol):
    """Decides which folders the models of agents may access; `refusal` and `remark` do blocking I/O."""

    def protect(self, references: Iterable[str]) -> None:
        """Also refuse folders in which a model could change the files of these Python modules, given as `package.module:name`.

        The gateway executes these modules. Folders with the gateway's settings, secrets or other code are refused in any case.
        """
        ...

    def refusal(self, root: Path, access: Access) -> str | None:
        """Return the reason and the fix if a model may not have this access (read, write, delete) to the folder `root`, else `None`."""
        ...

    def remark(self, root: Path) -> str | None:
        """Return a warning for the operator if the folder `root`, which a model may read, contains the configuration; else `None`."""
        ...


async def file_provider(files: FileAccess, folder: Path, roots: RootJudge | None) -> ContextProvider:
    """Return the context provider that adds file tools for the folder `files.root`, which is relative to `folder`.

    Access to `files.root` is checked for each run, because folders change.

    Raises:
        AgentError: `roots` refuses the folder.
        StorageError: The folder cannot be created.
    """
    if refusal := await root_refusal(folder / files.root, files.access, roots):
        raise AgentError(f"files.root: {refusal}")
    from gateway.agents.files.disk import FileSystemAgentFileStore
    from gateway.agents.files.file_access import FileAccessProvider

    store = await anyio.to_thread.run_sync(FileSystemAgentFileStore, folder / files.root)
    # The author of the agent file approved deletion with `access: delete`.
    return FileAccessProvider(store, access=files.access, require_delete_approval=False)


async def root_refusal(root: Path, access: Access, roots: RootJudge | None) -> str | None:
    """Return the reason if a model may not access the folder `root`; `None` if access is allowed or `roots` is `None`."""
    return await anyio.to_thread.run_sync(roots.refusal, root, access) if roots is not None else None


def security_provider(security: FlowSecurity) -> ContextProvider:
    """Return the context provider that restricts tool calls after a run has read untrusted content. `security` is the agent file's key.

    If no person can approve a restricted call during the run, the call is refused, because a run in the gateway cannot end with an
    approval request and continue later.
    """
    from gateway.agents.middleware.information_flow import SecureAgentConfig
    from gateway.policy.labels import FlowRules
    from gateway.staging import ExperimentalWarning

    rules = FlowRules(
        trusted=security.trusted,
        untrusted=security.untrusted,
        private=security.private,
        sinks=security.sinks,
        accepts_untrusted=security.accepts_untrusted,
        public_sinks=security.public_sinks,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # docs/agents.md says that the key is experimental
        return SecureAgentConfig(rules=rules, approval_on_violation=security.on_violation == "ask", may_end_run=False)


def memory_provider(memory: MemoryKey, agent: str, models: ModelResolver, conversations: Conversations | None) -> ContextProvider:
    """Return the context provider that stores messages to the agent and adds stored messages of similar meaning to later runs.

    Each embedding model has its own memories, because vectors of different models cannot be compared.

    Raises:
        ModelError: The embedding model has no endpoint.
    """
    from gateway.sessions.semantic_memory import SemanticMemoryProvider

    return SemanticMemoryProvider(
        models.embeddings(memory.embedding),
        conversations,
        owner=f"agent:{agent}" if memory.shared else None,
        collection=f"{agent} {memory.embedding}",
        top_k=memory.top,
        min_similarity=memory.min_similarity,
        store_outputs=memory.answers,
    )


def loop_middleware(until: LoopUntil, judge: SupportsChatGetResponse, report: Callable[[str], Awaitable[None]]) -> AgentMiddleware:
    """Return the middleware for the key `loop-until`, which repeats a run until a judge model finds the task done.

    Before each repetition, the middleware passes a progress message to `report`.
    """
    from gateway.agents.middleware.judge import next_message_after_verdict
    from gateway.agents.middleware.loop import AgentLoopMiddleware

    async def again(*, iteration: int, feedback: str | None = None) -> str:
        await report(f"not done yet, run {iteration + 1} of at most {until.max}")
        return next_message_after_verdict(feedback=feedback)

    return AgentLoopMiddleware.with_judge(judge, criteria=until.criteria, max_iterations=until.max, next_message=again)
