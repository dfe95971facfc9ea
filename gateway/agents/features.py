"""What the keys `files`, `security`, `memory` and `loop-until` put around an agent's runs. Called by `AgentTool` for each call."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread

from gateway.errors import AgentError
from gateway.policy.roots import Access

if TYPE_CHECKING:
    from gateway.agents.context import AgentMiddleware
    from gateway.agents.conversations import Conversations
    from gateway.agents.definition import LoopUntil, MemoryKey
    from gateway.chat.base import SupportsChatGetResponse
    from gateway.chat.resolve import ModelResolver
    from gateway.config.agents import FileAccess, FlowSecurity
    from gateway.sessions.context import ContextProvider

Tell = Callable[[str], Awaitable[None]]
"""Tells the caller of the agent how far it is."""


class RootJudge(Protocol):
    """Decides which folders a model may have; `refusal` and `remark` block."""

    def protect(self, references: Iterable[str]) -> None:
        """Protect what files name in Python too: `package.module:name`."""
        ...

    def refusal(self, root: Path, access: Access) -> str | None:
        """Return why a model may not have `root`, and what to do; `None` if it may."""
        ...

    def remark(self, root: Path) -> str | None:
        """Return what an operator should know of a folder that a model may read."""
        ...


async def file_provider(files: FileAccess, folder: Path, roots: RootJudge | None) -> ContextProvider:
    """The tools for the files of a folder, which is relative to `folder`; judged for each run, because folders change.

    Raises:
        AgentError: `roots` refuses the folder.
        StorageError: The folder cannot be made.
    """
    if refusal := await root_refusal(folder / files.root, files.access, roots):
        raise AgentError(f"files.root: {refusal}")
    from gateway.agents.files.disk import FileSystemAgentFileStore
    from gateway.agents.files.provider import FileAccessProvider

    store = await anyio.to_thread.run_sync(FileSystemAgentFileStore, folder / files.root)
    # Whoever wrote `access: delete` into the file has approved it.
    return FileAccessProvider(store, access=files.access, require_delete_approval=False)


async def root_refusal(root: Path, access: Access, roots: RootJudge | None) -> str | None:
    """Return why `roots` refuses to let a model have `root`; `None` if it may."""
    return await anyio.to_thread.run_sync(roots.refusal, root, access) if roots is not None else None


def security_provider(security: FlowSecurity) -> ContextProvider:
    """The guard after untrusted content. A person who cannot be asked at once says no: a run in the gateway has no second part."""
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
        warnings.simplefilter("ignore", ExperimentalWarning)  # the documentation of the key says it
        return SecureAgentConfig(rules=rules, approval_on_violation=security.on_violation == "ask", may_end_run=False)


def memory_provider(memory: MemoryKey, agent: str, models: ModelResolver, conversations: Conversations | None) -> ContextProvider:
    """What was said to this agent, found again by meaning. Another embedding model has memories of its own.

    Raises:
        ModelError: There is no endpoint for the embedding model.
    """
    from gateway.sessions.memory import SemanticMemoryProvider

    return SemanticMemoryProvider(
        models.embeddings(memory.embedding),
        conversations,
        owner=f"agent:{agent}" if memory.shared else None,
        collection=f"{agent} {memory.embedding}",
        top_k=memory.top,
        min_similarity=memory.min_similarity,
        store_outputs=memory.answers,
    )


def loop_middleware(until: LoopUntil, judge: SupportsChatGetResponse, tell: Tell) -> AgentMiddleware:
    """The loop, which tells of each new round."""
    from gateway.agents.middleware.judge import next_message_after_verdict
    from gateway.agents.middleware.loop import DEFAULT_NEXT_MESSAGE, AgentLoopMiddleware

    async def again(*, iteration: int, feedback: str | None = None) -> str:
        await tell(f"not done yet, run {iteration + 1} of at most {until.max}")
        return next_message_after_verdict(feedback=feedback) or DEFAULT_NEXT_MESSAGE

    return AgentLoopMiddleware.with_judge(judge, criteria=until.criteria, max_iterations=until.max, next_message=again)
