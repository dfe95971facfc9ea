"""The mutations themselves: they compile and keep line numbers; samples continue each other; equivalents are well formed."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.__main__ import PACKAGES, ROOT, equivalents
from tests.mutants.operators import compiles, mutants_of, order

CODE = b"""\
LIMIT = 3


def judge(names, seen=True):
    for name in names:
        if not name or (name in seen and
                        len(name) < 8):
            continue
        seen.add(name)
        logger.info("seen %s", 1)
    return [name for name in seen if name == "x"]
"""


def test_each_kind_of_mutation_is_found_and_keeps_line_numbers() -> None:
    found = mutants_of("sample.py", CODE)
    kinds = "empty-loop negate and-or drop-operand drop-not compare number break-continue drop-statement return-none"
    assert {mutant.operator for mutant in found} == set(kinds.split())
    assert len({mutant.id for mutant in found}) == len(found)
    for mutant in found:
        changed = mutant.apply(CODE)
        assert compiles(mutant, CODE) and changed != CODE and changed.count(b"\n") == CODE.count(b"\n")
        assert mutant.now.startswith(changed.splitlines()[mutant.line - 1].decode().strip()) and mutant.now != mutant.text


def test_code_outside_functions_and_log_calls_are_not_mutated() -> None:
    assert {mutant.line for mutant in mutants_of("sample.py", CODE)} == {5, 6, 7, 8, 9, 11}


def test_larger_sample_extends_a_smaller_one_and_mutants_stay() -> None:
    before = order(mutants_of("sample.py", CODE), 1)
    more = CODE.replace(b"LIMIT = 3", b"def other(x):\n    return x + 1")
    after = order(mutants_of("sample.py", more), 1)
    assert [m.id for m in after if m.function == "judge"] == [m.id for m in before]
    assert [m.id for m in order(mutants_of("sample.py", CODE), 2)] != [m.id for m in before]


def test_every_equivalent_mutant_is_measured_and_has_a_reason() -> None:
    files = {path.relative_to(ROOT).as_posix() for package in PACKAGES.values() for pattern in package.files for path in ROOT.glob(pattern)}
    named = equivalents()
    assert {module for module, *_ in named} <= files
    assert all(len(reason) > 20 for reason in named.values())


def test_measured_tests_exist() -> None:
    paths = [path for package in PACKAGES.values() for path in (*package.measured, *package.started)]
    assert [path for path in paths if not (ROOT / Path(path)).exists()] == []
