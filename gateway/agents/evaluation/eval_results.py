"""`EvalResults`: one evaluator's results for each judged item (a conversation of an agent), and assertions about the results for tests."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import cast

from gateway.errors import GatewayError
from gateway.json_types import JsonObject

MAX_NAMED = 5
"""Maximum number of scores or items that the error text of an `assert_*` method names; the others are only counted."""


class EvalNotPassedError(GatewayError):
    """The results of an evaluation do not meet an assertion of `EvalResults`."""


@dataclass(frozen=True)
class RubricScore:
    """The score of one dimension (criterion) of a rubric by which a judge scores an answer."""

    id: str
    score: int | None
    """Score of the dimension; `None` if the dimension does not apply to the answer."""
    applicable: bool
    weight: int
    reason: str


@dataclass
class EvalScoreResult:
    """Result of one evaluator or check of one judged item."""

    name: str
    score: float
    passed: bool | None = None
    sample: JsonObject | None = None
    """Output of the evaluator besides the score; `{"reason": …}` for local checks."""
    dimensions: list[RubricScore] | None = None


@dataclass
class EvalItemResult:
    """Result of one judged item, with the scores of all checks."""

    item_id: str
    status: str
    """Outcome of the item: `pass`, `fail`, or `error` (also `errored`) if it could not be judged."""
    scores: list[EvalScoreResult] = field(default_factory=lambda: cast("list[EvalScoreResult]", []))
    error_code: str | None = None
    error_message: str | None = None
    response_id: str | None = None
    input_text: str | None = None
    output_text: str | None = None
    token_usage: dict[str, int] | None = None
    metadata: JsonObject | None = None

    @property
    def is_error(self) -> bool:
        """Whether the item could not be judged."""
        return self.status in ("error", "errored")

    @property
    def is_passed(self) -> bool:
        """Whether the item passed all checks."""
        return self.status == "pass"

    @property
    def is_failed(self) -> bool:
        """Whether the item failed at least one check."""
        return self.status == "fail"


@dataclass(kw_only=True)
class EvalResults:
    """Results of one evaluator for a batch of items. For a workflow, `sub_results` contains the results of each agent, by its name."""

    provider: str
    eval_id: str = ""
    run_id: str = ""
    status: str = "completed"
    """State of the evaluation as a whole: `completed`, `failed`, `canceled`, `timeout` or `partial`."""
    result_counts: dict[str, int] | None = None
    """Number of items that `passed`, `failed` and `errored` (could not be judged)."""
    report_url: str | None = None
    error: str | None = None
    per_evaluator: dict[str, dict[str, int]] = field(default_factory=lambda: cast("dict[str, dict[str, int]]", {}))
    items: list[EvalItemResult] = field(default_factory=lambda: cast("list[EvalItemResult]", []))
    sub_results: dict[str, EvalResults] = field(default_factory=lambda: cast("dict[str, EvalResults]", {}))

    @property
    def passed(self) -> int:
        """Number of judged items that passed."""
        return self._count("passed")

    @property
    def failed(self) -> int:
        """Number of judged items that failed."""
        return self._count("failed")

    @property
    def total(self) -> int:
        """Number of items that were judged: those that passed and those that failed."""
        return self.passed + self.failed

    @property
    def all_passed(self) -> bool:
        """Whether the evaluation completed, at least one item was judged, all items could be judged, and no item failed.

        All `sub_results` must meet the same conditions. Results that consist of `sub_results` need no items of their own.
        """
        clean = self.failed == 0 and self._count("errored") == 0 and self.total > 0
        if self.sub_results:
            clean = (clean or not self.result_counts) and all(sub.all_passed for sub in self.sub_results.values())
        return self.status == "completed" and clean

    def raise_for_status(self, msg: str | None = None) -> None:
        """Assert that `all_passed` is true.

        Raises:
            EvalNotPassedError: `all_passed` is false. The text has the counts, and names failed `sub_results` and items that could not
                be judged.
        """
        if self.all_passed:
            return
        failing = [name for name, sub in self.sub_results.items() if not sub.all_passed]
        errored = [f"{item.item_id}: {item.error_code or 'unknown'}" for item in self.items if item.is_error]
        parts = [
            msg or f"Eval run {self.run_id} {self.status}: {self.passed} passed, {self.failed} failed.",
            f"{self._count('errored')} errored." if self._count("errored") else "",
            f"See {self.report_url} for details." if self.report_url else "",
            f"Error: {self.error}" if self.error else "",
            f"Failed: {', '.join(failing)}." if failing else "",
            f"Errored items: {', '.join(errored)}." if errored else "",
        ]
        raise EvalNotPassedError(" ".join(part for part in parts if part))

    def assert_score_at_least(self, min_score: float, *, evaluator: str | None = None, msg: str | None = None) -> None:
        """Assert that every score is at least `min_score`; with `evaluator`, only the scores of the evaluator or check of that name.

        Raises:
            EvalNotPassedError: A score is lower.
        """
        low = [f"{item.item_id}/{s.name}={s.score:.3f}" for item in self._all() for s in _scores(item, evaluator) if s.score < min_score]
        if low:
            of = f" for {evaluator}" if evaluator else ""
            raise EvalNotPassedError(msg or f"{len(low)} score(s) below threshold {min_score}{of}: {_named(low)}")

    def assert_dimension_score_at_least(
        self,
        dimension_id: str,
        min_score: float,
        *,
        evaluator: str | None = None,
        require_applicable: bool = False,
        msg: str | None = None,
    ) -> None:
        """Assert that every score of a rubric's dimension is at least `min_score`.

        Items to which the dimension does not apply are skipped, unless `require_applicable` is set.

        Raises:
            EvalNotPassedError: A score is lower or `None`, or with `require_applicable`, the dimension does not apply to an item.
        """
        low: list[str] = []
        missing: list[str] = []
        for item in self._all():
            found = [
                (score.name, rubric.score)
                for score in _scores(item, evaluator)
                for rubric in score.dimensions or ()
                if rubric.id == dimension_id and rubric.applicable
            ]
            low += [f"{item.item_id}/{name}/{dimension_id}={value}" for name, value in found if value is None or value < min_score]
            if require_applicable and not found:
                missing.append(item.item_id)
        problems = [f"{len(low)} dimension score(s) for {dimension_id!r} below {min_score}: {_named(low)}"] if low else []
        if missing:
            problems.append(f"Dimension {dimension_id!r} not applicable on {len(missing)} item(s): {_named(missing)}")
        if problems:
            raise EvalNotPassedError(msg or "; ".join(problems))

    def assert_no_failed_items(self, msg: str | None = None) -> None:
        """Assert that no item failed and that all items could be judged.

        Raises:
            EvalNotPassedError: An item failed or could not be judged.
        """
        bad = [f"{item.item_id}:{item.status}" for item in self._all() if item.is_failed or item.is_error]
        if bad:
            raise EvalNotPassedError(msg or f"{len(bad)} item(s) failed or errored: {_named(bad)}")

    def _count(self, name: str) -> int:
        return (self.result_counts or {}).get(name, 0)

    def _all(self) -> Generator[EvalItemResult]:
        yield from self.items
        for sub in self.sub_results.values():
            yield from sub._all()


def _scores(item: EvalItemResult, evaluator: str | None) -> list[EvalScoreResult]:
    return [score for score in item.scores if evaluator is None or score.name == evaluator]


def _named(offenders: list[str]) -> str:
    more = f" (+{len(offenders) - MAX_NAMED} more)" if len(offenders) > MAX_NAMED else ""
    return ", ".join(offenders[:MAX_NAMED]) + more
