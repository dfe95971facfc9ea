"""Stages of features: warnings, their number, and attributes of marked objects."""

from __future__ import annotations

import inspect
import warnings
from typing import Protocol, runtime_checkable

import anyio
import pytest

import gateway
from gateway.staging import ExperimentalWarning, experimental, release_candidate


def warned(record: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message).split(" is ")[0] for warning in record]


@pytest.mark.requirement("FS1")
async def test_first_use_of_an_experimental_feature_warns_once() -> None:
    @experimental(feature_id="STAGE_A")
    class Thing:
        """A thing."""

        def __init__(self, value: int) -> None:
            self.value = value

    @experimental(feature_id="STAGE_A")
    def make() -> int:
        return 1

    @experimental(feature_id="STAGE_B")
    async def fetch() -> int:
        return 2

    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        assert (Thing(3).value, Thing(4).value, make(), await fetch(), await fetch()) == (3, 4, 1, 2, 2)

    assert [text.split("]")[0] for text in warned(record)] == ["[STAGE_A", "[STAGE_B"]
    assert {warning.category for warning in record} == {ExperimentalWarning}
    assert {warning.filename for warning in record} == {__file__}
    assert "Experimental" in (Thing.__doc__ or "")
    assert inspect.iscoroutinefunction(fetch)


@pytest.mark.requirement("FS1")
def test_coroutine_warns_at_the_line_that_started_it() -> None:
    @experimental(feature_id="STAGE_LOOP")
    async def fetch() -> int:
        return 2

    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        assert anyio.run(fetch) == 2
    assert [warning.filename for warning in record] == [__file__]


@pytest.mark.requirement("FS1")
def test_subclass_warns_at_definition_and_inherits_behaviour() -> None:
    seen: list[str] = []

    class Base:
        def __init_subclass__(cls, mark: str = "") -> None:
            seen.append(f"{cls.__name__}{mark}")

    @experimental(feature_id="STAGE_C")
    class Staged(Base):
        pass

    with pytest.warns(ExperimentalWarning, match="STAGE_C"):

        class Mine(Staged, mark="!"):
            pass

    assert seen == ["Staged", "Mine!"]
    Mine()
    with pytest.raises(TypeError):
        Mine(1)  # pyright: ignore[reportCallIssue]  # that is the point


@pytest.mark.requirement("FS1")
def test_protocols_and_release_candidates_stay_silent() -> None:
    @experimental(feature_id="STAGE_D")
    @runtime_checkable
    class Runs(Protocol):
        def run(self) -> None: ...

    @release_candidate(feature_id="STAGE_E")
    def almost() -> str:
        """Nearly there."""
        return "done"

    class Runner:
        def run(self) -> None: ...

    assert isinstance(Runner(), Runs)
    assert not hasattr(Runs, "__feature_id__")
    assert almost() == "done"
    assert "Release candidate" in (almost.__doc__ or "")
    assert getattr(almost, "__feature_stage__", None) == "release_candidate"


@pytest.mark.requirement("FS2")
def test_feature_lists_are_public_and_each_id_is_its_name() -> None:
    assert all(feature.value == feature.name for feature in gateway.ExperimentalFeature)
    assert list(gateway.ReleaseCandidateFeature) == []


@pytest.mark.requirement("FS1", "FS2")
def test_documented_ids_exist_and_their_warnings_can_be_filtered() -> None:
    earlier = "EVALS FILE_HISTORY FIDES FOUNDRY_TOOLS FOUNDRY_PREVIEW_TOOLS FUNCTIONAL_WORKFLOWS HARNESS SKILLS TO_PROMPT_AGENT"
    later = " AGENT_HOOKS COMPUTER_USE DECLARATIVE_AGENTS MCP_SKILLS PROGRESSIVE_TOOLS SESSION_STORE VECTOR_STORES"
    documented = earlier + later
    assert {gateway.ExperimentalFeature(name) for name in documented.split()} <= set(gateway.ExperimentalFeature)
    assert issubclass(gateway.ExperimentalWarning, gateway.FeatureStageWarning) and issubclass(gateway.FeatureStageWarning, FutureWarning)

    @experimental(feature_id=gateway.ExperimentalFeature.SKILLS)
    def staged() -> str:
        return "used"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=gateway.ExperimentalWarning)
        assert staged() == "used"
    assert (getattr(staged, "__feature_id__", None), getattr(staged, "__feature_stage__", None)) == ("SKILLS", "experimental")
