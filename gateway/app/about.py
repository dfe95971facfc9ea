"""What the status page says of a running gateway beside its sources; `moongate` reads it. Used by `Gateway.serve_http`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from gateway.auth.identity import Identity
from gateway.auth.principal import LOCAL, Principal
from gateway.json_types import JsonObject
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.storage.state import StateFolder, state_dir

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.app.gateway import Gateway
    from gateway.app.workers import Place
    from gateway.config.load import LoadedConfig
    from gateway.skills.models import SkillReport


def prover_of(loaded: LoadedConfig, port: int) -> Callable[[str], str]:
    """Return what proves to a command of the same user that the gateway on `port` serves `loaded` (`Identity.prove`)."""
    identity = Identity(StateFolder(state_dir(loaded.config.storage.dir)), loaded.path or loaded.base_dir)
    return lambda challenge: identity.prove(challenge, port)


def about(gateway: Gateway, place: Place | None) -> JsonObject:
    """Return the configuration file, the process to stop, the prefixes of sources, and the files that did not load."""
    policies = gateway.loaded.config.policies
    return {
        "configuration": str(gateway.loaded.path) if gateway.loaded.path is not None else None,
        "pid": os.getpid() if place is None else os.getppid(),
        "prefixes": {name: policy.prefix for name, policy in policies.items() if policy.prefix is not None},
        "notLoaded": not_loaded(gateway),
    }


def viewer_of(request: Request) -> Principal:
    """The caller of a page; the local user on a gateway without keys."""
    return cast("Principal", request.scope.get(PRINCIPAL_SCOPE_KEY, LOCAL))


def not_loaded(gateway: Gateway) -> list[JsonObject]:
    """Return the files of agents, workflows, functions and skills that are not served, each with its source and the reason."""
    found: list[JsonObject] = [
        {"source": source, "where": problem.where, "message": problem.message} for source, problem in gateway.local_problems()
    ]
    return [*found, *rejected_skills(gateway.skill_problems())]


def rejected_skills(reports: Sequence[SkillReport]) -> list[JsonObject]:
    """Return the skills among `reports` that are not served."""
    found: list[JsonObject] = []
    for report in reports:
        if report.verdict == "rejected":
            errors = [diagnostic.message for diagnostic in report.diagnostics if diagnostic.level == "error"]
            found.append({"source": "skill", "where": report.path, "message": "; ".join(errors)})
    return found
