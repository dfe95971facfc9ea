"""Generated workflows, killed anywhere: each question gets its own answer, and no effect is repeated without asking."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.postgres import Postgres, postgres
from tests.tasks.killing import Ended, Ledger, in_file, run_killed

Form = dict[str, Any]
QUESTIONS = ("Release now?", "Go on?")
"""Few, so that most questions of a workflow have equal words."""


@st.composite
def forms(draw: st.DrawFn) -> Form:
    """A workflow of two to five executors in a random graph without circles, with up to two loops."""
    names = [f"e{number}" for number in range(draw(st.integers(2, 5)))]
    before: dict[str, list[str]] = {names[0]: []}
    executors: Form = {}
    edges: list[Form] = []
    for number, name in enumerate(names):
        if number:
            sources = draw(st.lists(st.sampled_from(names[:number]), min_size=1, max_size=2, unique=True))
            edges += [{"from": source, "to": name} for source in sources]
            before[name] = sorted({*sources, *(earlier for source in sources for earlier in before[source])})
        said = f"after {{{{{draw(st.sampled_from(before[name]))}}}}}" if before[name] and draw(st.booleans()) else "same"
        kind = draw(st.sampled_from(["ask", "ask", "act", "look", "pay"]))
        executors[name] = {"ask": draw(st.sampled_from(QUESTIONS))} if kind == "ask" else {"tool": f"t/{kind}", "arguments": {"x": said}}
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.sampled_from(names))
        back = draw(st.sampled_from([start, *(name for name in names if start in before[name])]))
        edges.append({"from": back, "to": start, "max": draw(st.integers(1, 2))})
    pairs: dict[tuple[str, str], Form] = {(edge["from"], edge["to"]): edge for edge in edges}
    return {"executors": executors, "start": names[0], "edges": list(pairs.values()), "output-from": "all"}


def check(killed: Ended, ledger: Ledger, undisturbed: Ended, model: Ledger) -> None:
    """Compare a run whose processes were killed with an undisturbed run."""
    assert killed.texts == undisturbed.texts
    assert {key for key, _ in model.answered()} <= {key for key, _ in ledger.answered()}
    doubts = Counter(key.rpartition("!")[0] for key, text in ledger.answered() if text.startswith("The gateway stopped"))
    answered = Counter(key for key, _ in ledger.answered())
    assert {key: times for key, times in answered.items() if times > 1} == {}, "a question was answered twice"
    effects, expected = Counter(ledger.effects.lines()), Counter(model.effects.lines())
    assert effects.keys() == expected.keys()
    assert set(expected.values()) <= {1}
    for line, times in effects.items():
        key = line.partition(" ")[0]
        most = killed.kills if "/t__look:" in key else doubts[key]
        assert times <= 1 + most, f"{line} was repeated unasked"


def compare(form: Form, kills: list[int], *, answer_down: bool, url: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model, ledger = Ledger(folder / "model"), Ledger(folder / "ledger")
        undisturbed = run_killed(folder / "a", in_file(form), model, [])
        killed = run_killed(folder / "b", in_file(form), ledger, kills, url=url, answer_down=answer_down)
        asked = [name for name, executor in form["executors"].items() if "ask" in executor]
        shown = {key for key, text in model.answered() if text.endswith(QUESTIONS)}
        outputs = [text for text in undisturbed.texts if text.startswith("A ")]
        assert len(outputs) == len(set(outputs)) == len(shown), "two questions had one key"
        assert asked == [] or outputs
        check(killed, ledger, undisturbed, model)


KILLS = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@pytest.mark.faults
@pytest.mark.fault(3)
@pytest.mark.timeout(300)
@settings(max_examples=3)
@given(form=forms(), kills=KILLS, answer_down=st.booleans())
def test_killed_workflow_ends_as_undisturbed_one(form: Form, kills: list[int], answer_down: bool) -> None:
    compare(form, kills, answer_down=answer_down)


@pytest.mark.faults
@pytest.mark.fault(3)
@pytest.mark.timeout(1800)
@settings(max_examples=250)
@given(form=forms(), kills=KILLS, answer_down=st.booleans())
def test_many_killed_workflows_end_as_undisturbed_ones(form: Form, kills: list[int], answer_down: bool) -> None:
    compare(form, kills, answer_down=answer_down)


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running_server:
        yield running_server


@pytest.mark.postgres
@pytest.mark.faults
@pytest.mark.fault(3)
@pytest.mark.timeout(900)
def test_workflow_killed_on_a_database_server_ends_like_others(server: Postgres) -> None:
    @settings(max_examples=60)
    @given(form=forms(), kills=KILLS, answer_down=st.booleans())
    def run(form: Form, kills: list[int], answer_down: bool) -> None:
        compare(form, kills, answer_down=answer_down, url=server.database(f"killed_{secrets.token_hex(4)}"))

    run()
