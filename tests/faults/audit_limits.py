"""The bounds of the audit log and of metrics, for the table in `caps`: setting or constant, what it bounds, and the test that shows it."""

from __future__ import annotations

AUDIT_LIMITS: tuple[tuple[str, str, str, str], ...] = (
    (
        "gateway.storage.audit_writer:MAX_CALLS",
        "allowed calls that wait for the audit log",
        "tests/storage/test_audit_writer.py",
        "test_locked_database_delays_no_call_and_a_refusal_by_a_second",
    ),
    (
        "gateway.storage.audit_writer:MAX_QUEUED",
        "refusals and other decisions that wait for the audit log",
        "tests/storage/test_records.py",
        "test_full_queue_drops_lines_and_counts_them",
    ),
    (
        "gateway.storage.audit_writer:SETTLE_SECONDS",
        "the wait of a refused call for the audit log",
        "tests/storage/test_audit_writer.py",
        "test_locked_database_delays_no_call_and_a_refusal_by_a_second",
    ),
    (
        "audit.maxEntries",
        "entries of the audit log",
        "tests/storage/test_audit_writer.py",
        "test_oldest_entries_beyond_the_maximum_are_deleted",
    ),
    (
        "gateway.policy.audit_policy:MAX_ARGUMENTS",
        "arguments in an entry of the audit log",
        "tests/policy/test_audit_policy.py",
        "test_many_and_long_arguments_are_cut",
    ),
    (
        "gateway.telemetry.call_counts:MAX_TOOLS",
        "tools with a label in metrics",
        "tests/telemetry/test_prometheus.py",
        "test_rare_values_share_one_label_and_frequent_ones_get_their_own",
    ),
    (
        "gateway.telemetry.call_counts:MAX_PRINCIPALS",
        "callers with a label in metrics",
        "tests/telemetry/test_prometheus.py",
        "test_queue_of_counts_is_bounded",
    ),
    (
        "gateway.telemetry.call_counts:MAX_QUEUED",
        "calls that are not counted yet",
        "tests/telemetry/test_prometheus.py",
        "test_queue_of_counts_is_bounded",
    ),
)
