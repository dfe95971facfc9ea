"""`make mutants`: a seeded sample of mutants for each package, each with the tests that run its line, and a table of what survived.

    python -m tests.mutants [--package NAME] [--sample N] [--seed N] [--minutes N] [--again VERDICT] [--measure]

The tests run in a copy of the tree, never in the checkout. Verdicts are kept in a folder of the user's cache: a run that is started again
goes on where the last one stopped, and a larger sample continues a smaller one. `MUTANTS_DIR` names another folder.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.operators import Mutant, compiles, mutants_of, order
from tests.mutants.session import PLAN

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
SEED = 20
SAMPLE = 300
MAX_TEST_SECONDS = 30.0
"""Maximum total time, measured without a mutant, of the tests that run for one mutant. The fastest tests are chosen first."""

SKIPPED = "not interop and not conformance and not browser and not faults and not soak and not attacks and not postgres"


@dataclass(frozen=True)
class Package:
    """Files to mutate, and the tests that may detect the mutants."""

    files: tuple[str, ...]
    """Globs of the mutated files."""
    measured: tuple[str, ...]
    """Tests that are measured: each test runs for the mutants of the lines that it executes in its own process."""
    started: tuple[str, ...] = ()
    """Tests that start gateways, for lines that no measured test runs."""


PACKAGES = {
    "policy": Package(
        ("gateway/policy/*.py",),
        (
            *("tests/policy", "tests/tools", "tests/catalog", "tests/skills", "tests/egress", "tests/architecture/test_example_rules.py"),
            *(f"tests/agents/test_{name}.py" for name in ("a2a", "security", "served_agents", "tool", "tool_approval")),
            *(f"tests/attacks/test_{name}.py" for name in ("argument_rules", "instructions", "metadata", "roots", "scopes")),
            *(f"tests/upstream/test_{name}.py" for name in ("gateway_chain", "pins", "sign_in")),
            *("tests/server/test_clients.py", "tests/storage/test_approval_rules.py"),
            *("tests/workflows/test_loader.py", "tests/tasks/test_turns.py"),
        ),
        ("tests/interaction/test_arguments.py", "tests/cli/test_policy.py"),
    ),
    "gate": Package(
        tuple(f"gateway/gate/{name}.py" for name in ("pipeline", "reads", "refusals", "tool_rules", "tools")),
        ("tests/gate", "tests/catalog", *(f"tests/server/test_{name}.py" for name in ("plain_calls", "session_calls", "parked"))),
        ("tests/interaction/test_results.py", "tests/interaction/test_hidden_text.py", "tests/interaction/test_task_results.py"),
    ),
    "tasks": Package(
        ("gateway/tasks/*.py",),
        ("tests/tasks",),
        tuple(f"tests/interaction/test_{name}.py" for name in ("task_handles", "tasks", "followed_tasks", "task_news")),
    ),
}


def main() -> int:
    """Run what is missing of the sample, and print the table."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--package", choices=list(PACKAGES), action="append")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants for each package (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--minutes", type=float, default=600.0, help="start no further mutant after this time")
    parser.add_argument("--again", choices=["survived", "killed", "timeout"], help="judge mutants with this verdict once more")
    parser.add_argument("--module", default="", help="only mutants of files whose path contains this text")
    parser.add_argument("--measure", action="store_true", help="measure again which test runs which line")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("MUTANTS_DIR") or cache / "moongate-mutants")
    rows: list[str] = []
    for name in given.package or PACKAGES:
        sample = sample_of(name, seed=given.seed, size=given.sample)
        results = folder / name / "verdicts.jsonl"
        if not given.table:
            todo = [mutant for mutant in sample if given.module in mutant.module]
            run(name, todo, results, given)
        rows += report(name, sample, verdicts(results))
        present = {key_of(mutant) for mutant in mutants_of_package(name)}
        for key in equivalents():
            if key not in present and key[0] in {module for module, *_ in present}:
                say(f"\nequivalent.toml names a mutant that the code no longer has: {key[0]} {key[1]}: {key[3]}")
    say("\n| package | mutants | judged | killed | timed out | equivalent | survived | score |\n|---|---|---|---|---|---|---|---|")
    say("\n".join(rows))
    return 0


def say(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def sample_of(name: str, *, seed: int, size: int) -> list[Mutant]:
    """The first mutants of a package in the seed's order, without those that do not compile."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_bytes() for pattern in PACKAGES[name].files for path in ROOT.glob(pattern)}
    valid = (mutant for mutant in order(mutants_of_package(name), seed) if compiles(mutant, sources[mutant.module]))
    return list(itertools.islice(valid, size))


def mutants_of_package(name: str) -> list[Mutant]:
    """Every mutant of a package."""
    paths = sorted(path for pattern in PACKAGES[name].files for path in ROOT.glob(pattern))
    return [mutant for path in paths for mutant in mutants_of(path.relative_to(ROOT).as_posix(), path.read_bytes())]


def verdicts(results: Path) -> dict[str, str]:
    """The last verdict on each mutant."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["id"]: row["verdict"] for row in map(json.loads, lines)}


def equivalents() -> dict[tuple[str, str, str, str, str], str]:
    """Mutants that no test can tell from the code, with the reason."""
    listed: list[dict[str, str]] = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(e["module"], e["function"], e["operator"], e["text"], e["now"]): e["reason"] for e in listed}


def key_of(mutant: Mutant) -> tuple[str, str, str, str, str]:
    """Return the key of a mutant in the list of equivalents."""
    return mutant.module, mutant.function, mutant.operator, mutant.text, mutant.now


def run(name: str, sample: Sequence[Mutant], results: Path, given: argparse.Namespace) -> None:
    """Judge the mutants that have no verdict, in a fresh copy of the tree."""
    known, same = verdicts(results), equivalents()
    todo = [m for m in sample if key_of(m) not in same and (m.id not in known or known[m.id] == given.again)]
    if not todo:
        return
    package, tree = PACKAGES[name], results.with_name("tree")
    copy(tree)
    measured, started = (measure(tree, package.files, tests, again=given.measure) for tests in (package.measured, package.started))
    lines, seconds = measured.lines, {**started.seconds, **measured.seconds}
    plans: list[dict[str, Any]] = []
    for mutant in todo:
        found = tests_for(mutant, lines.get(mutant.module, {}))
        tests = fastest(found or [*started.seconds], seconds)
        source = (ROOT / mutant.module).read_bytes()
        plan: dict[str, Any] = {"id": mutant.id, "path": str(tree / mutant.module), "source": mutant.apply(source).decode(), "tests": tests}
        plans.append({**plan, "expected": sum(seconds[test] for test in tests)})
    files = sorted({test.partition("::")[0] for plan in plans for test in plan["tests"]})
    say(f"{name}: {len(plans)} mutants to judge")
    session(tree, files, {"mutants": plans, "results": str(results), "seconds": given.minutes * 60})


@dataclass
class Measured:
    """Duration and executed lines of tests without a mutant. Failed and skipped tests are left out."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[str]]]
    """The tests that run a line, by file and line number."""


def measure(tree: Path, files: Sequence[str], tests: Sequence[str], *, again: bool) -> Measured:
    """Run each of the tests once, if that was not done before."""
    every = Measured({}, {})
    for test in tests:
        out = tree.with_name(f"{test.replace('/', '-')}.json")
        if again or not out.exists():
            session(tree, [test], {"measure": files, "out": str(out)})
        found = json.loads(out.read_text())
        every.seconds |= {name: seconds for name, seconds in found["seconds"].items() if name not in found["failed"]}
        for file, by_line in found["lines"].items():
            known = every.lines.setdefault(file, {})
            for line, names in by_line.items():
                known[line] = [*known.get(line, []), *names]
    return every


def tests_for(mutant: Mutant, lines: dict[str, list[str]]) -> list[str]:
    """The tests that run the line; for a line inside a longer statement, those of the statement's first line.

    If it is one test alone, the function's result may be cached, so the other tests of the module follow.
    """
    for line in range(mutant.line, max(mutant.line - 8, 0), -1):
        if found := lines.get(str(line)):
            return found if len(found) > 1 else sorted({name for names in lines.values() for name in names})
    return []


def fastest(tests: Sequence[str], seconds: dict[str, float]) -> list[str]:
    """As many of the tests as fit in the time, the fastest first."""
    chosen: list[str] = []
    left = MAX_TEST_SECONDS
    for test in sorted(tests, key=seconds.__getitem__):
        left -= seconds[test]
        if left < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def copy(tree: Path) -> None:
    """The files of the checkout as they are now."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    compileall.compile_dir(tree / "gateway", quiet=1)


def session(tree: Path, tests: Sequence[str], plan: dict[str, Any]) -> None:
    """One pytest session in the copy."""
    plan_file = tree.with_name("plan.json")
    plan_file.write_text(json.dumps(plan))
    env = {**os.environ, PLAN: str(plan_file), "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-p", "tests.mutants.session", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-s", "--no-header", "-m", SKIPPED]
    call = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    with tree.with_name("session.log").open("ab") as log:
        subprocess.run([sys.executable, "-c", call, *options, *tests], cwd=tree, env=env, check=False, stdout=log, stderr=log)


def report(name: str, sample: Sequence[Mutant], known: dict[str, str]) -> list[str]:
    """Print the survivors, and return the package's row of the table."""
    same = equivalents()
    equivalent = [mutant for mutant in sample if key_of(mutant) in same]
    judged = [mutant for mutant in sample if mutant.id in known and key_of(mutant) not in same]
    counted = {verdict: [m for m in judged if known[m.id] == verdict] for verdict in ("killed", "timeout", "survived")}
    for mutant in sorted(counted["survived"], key=lambda m: (m.module, m.line)):
        say(f"\n{mutant.module}:{mutant.line} {mutant.function} [{mutant.operator}]\n- {mutant.text}\n+ {mutant.now}")
    noticed = len(counted["killed"]) + len(counted["timeout"])
    score = f"{100 * noticed / len(judged):.1f} %" if judged else ""
    numbers = (len(sample), len(judged) + len(equivalent), len(counted["killed"]), len(counted["timeout"]), len(equivalent))
    return [f"| {name} | {' | '.join(map(str, numbers))} | {len(counted['survived'])} | {score} |"]


if __name__ == "__main__":
    sys.exit(main())
