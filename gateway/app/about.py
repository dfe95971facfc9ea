"""Facts that a running gateway shows on its status page: configuration file, process id, name prefixes, files that did not load."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from gateway.auth.identity import Identity
from gateway.auth.principal import LOCAL, Principal
from gateway.json_types import JsonObject
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.storage.state_folder import StateFolder, state_dir

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.app.inspection import Inspection
    from gateway.config.load import LoadedConfig
    from gateway.skills.model import SkillReport


def prover_of(loaded: LoadedConfig, port: int) -> Callable[[str], str]:
    """Return a function that answers a challenge with a proof that the gateway on `port` serves the configuration `loaded`.

    Commands send the challenge to the health page before they trust a gateway (see `Identity.prove`).
    """
    identity = Identity(StateFolder(state_dir(loaded.config.storage.dir)), loaded.path or loaded.base_dir)
    return lambda challenge: identity.prove(challenge, port)


def about(loaded: LoadedConfig, not_loaded: Sequence[JsonObject]) -> JsonObject:
    """Return a JSON object with the configuration file, the process id, the tool-name prefix of each source, and `not_loaded`."""
    policies = loaded.config.policies
    return {
        "configuration": str(loaded.path) if loaded.path is not None else None,
        "pid": os.getpid(),
        "prefixes": {name: policy.prefix for name, policy in policies.items() if policy.prefix is not None},
        "notLoaded": [*not_loaded],
    }


def viewer_of(request: Request) -> Principal:
    """Return the authenticated principal that requests a page; the local user if the gateway has no API keys."""
    return cast("Principal", request.scope.get(PRINCIPAL_SCOPE_KEY, LOCAL))


def not_loaded(inspection: Inspection) -> list[JsonObject]:
    """Return the files of agents, workflows, functions and skills that could not be loaded: `source`, `where` and `message` of each."""
    found: list[JsonObject] = [
        {"source": source, "where": problem.where, "message": problem.message} for source, problem in inspection.local_problems()
    ]
    return [*found, *rejected_skills(inspection.skill_problems())]


def rejected_skills(reports: Sequence[SkillReport]) -> list[JsonObject]:
    """Return the rejected skills among `reports`, in the form that `not_loaded` returns."""
    found: list[JsonObject] = []
    for report in reports:
        if report.verdict == "rejected":
            errors = [diagnostic.message for diagnostic in report.diagnostics if diagnostic.level == "error"]
            found.append({"source": "skill", "where": report.path, "message": "; ".join(errors)})
    return found
