"""Every bound that keeps a peer from costing more than its own call, with the test that shows it.

A name in backticks is a key of the configuration; another is a constant of the module before it. docs/faults.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.audit_limits import AUDIT_LIMITS


@dataclass(frozen=True, slots=True)
class Cap:
    """One limit on the resources that a peer can use."""

    of: str
    """The configuration key, or `module:CONSTANT`."""
    bounds: str
    path: str
    test: str
    """The name of the test function in the file at `path`."""


CAPS: tuple[Cap, ...] = (
    Cap(
        "server.http.maxRequestBytes",
        "a request's body",
        "tests/server/test_key_gate.py",
        "test_oversized_or_unparsable_body_is_rejected",
    ),
    Cap(
        "gateway.wire.json_limits:MAX_PARTS",
        "members, objects and lists in a request's body",
        "tests/attacks/test_encodings.py",
        "test_message_with_too_many_members_is_refused",
    ),
    Cap(
        "gateway.wire.json_limits:MAX_VALUES",
        "members and list elements in a request's body",
        "tests/attacks/test_encodings.py",
        "test_message_with_too_many_members_is_refused",
    ),
    Cap(
        "server.http.maxConnections",
        "connections at once",
        "tests/attacks/test_connections.py",
        "test_connections_leave_descriptors_for_the_rest",
    ),
    Cap(
        "server.http.headSeconds",
        "the head of a request",
        "tests/attacks/test_connections.py",
        "test_three_hundred_half_requests_end_while_others_are_served",
    ),
    Cap(
        "server.http.bodySeconds",
        "the body of a request",
        "tests/attacks/test_connections.py",
        "test_body_that_does_not_arrive_ends_its_request",
    ),
    Cap(
        "server.http.unreadSeconds",
        "a response that its client does not read",
        "tests/attacks/test_connections.py",
        "test_unread_responses_are_cut_off",
    ),
    Cap(
        "server.http.drainSeconds",
        "calls after SIGTERM",
        "tests/faults/test_stopping.py",
        "test_endless_call_ends_after_the_set_time_or_a_second_signal",
    ),
    Cap(
        "server.pageSize",
        "entries in a page of a listing",
        "tests/cli/test_reload.py",
        "test_fifty_servers_list_two_thousand_tools_and_call_once",
    ),
    Cap(
        "server.askTimeoutSeconds",
        "a question to a person",
        "tests/interaction/test_governed_asks.py",
        "test_unanswered_question_ends_in_readable_rejection",
    ),
    Cap(
        "gateway.access.decisions:MAX_DECISIONS",
        "kept decisions about what callers may use, twice",
        "tests/access/test_roles.py",
        "test_cache_is_bounded_and_keeps_what_is_used",
    ),
    Cap(
        "gateway.server.parked:MAX_PARKED_PER_PRINCIPAL",
        "parked calls of one caller",
        "tests/server/test_parked.py",
        "test_longest_parked_call_is_evicted_at_the_principals_limit",
    ),
    Cap(
        "gateway.server.sealed_sessions:MAX_ID",
        "the id of a session that every replica continues",
        "tests/server/test_continued_sessions.py",
        "test_requests_of_a_session_with_a_long_handshake_reach_its_replica",
    ),
    Cap(
        "gateway.server.event_ids:MAX_REQUEST_ID",
        "a request's id in the ids of its events",
        "tests/server/test_resumable_sessions.py",
        "test_event_id_has_no_request_id_that_is_odd_or_too_long",
    ),
    Cap(
        "gateway.server.replicas:MAX_NONCES",
        "signatures of forwarded requests that a replica remembers",
        "tests/server/test_replica_signature.py",
        "test_replica_remembers_so_many_signatures_and_no_more",
    ),
    Cap(
        "gateway.storage.refused_replicas:MAX_ROWS",
        "gateways that could not use the database",
        "tests/storage/test_refused_replicas.py",
        "test_latest_refusals_are_kept_with_short_reasons",
    ),
    Cap(
        "gateway.storage.refused_replicas:MAX_REASON",
        "the reason for which a gateway could not use the database",
        "tests/storage/test_refused_replicas.py",
        "test_latest_refusals_are_kept_with_short_reasons",
    ),
    Cap(
        "gateway.server.watches:MAX_WATCHED",
        "resources that one client watches",
        "tests/attacks/test_watching.py",
        "test_client_watches_so_many_resources_and_no_more",
    ),
    Cap(
        "gateway.server.changes:SEND_SECONDS",
        "a notification to a client that does not read",
        "tests/server/test_changes.py",
        "test_client_that_reads_nothing_delays_no_other_notification",
    ),
    Cap(
        "server.limits.connectionsPerAddress",
        "connections of one address",
        "tests/attacks/test_floods.py",
        "test_address_has_bounded_share_of_connections",
    ),
    Cap(
        "server.limits.incompleteBytes",
        "requests that are still arriving",
        "tests/attacks/test_floods.py",
        "test_incomplete_requests_hold_bounded_memory",
    ),
    Cap(
        "server.limits.requestBytesPerCaller",
        "bodies of one caller's requests in progress",
        "tests/attacks/test_quotas.py",
        "test_key_has_bounded_bytes_of_requests",
    ),
    Cap(
        "server.limits.unreadBytesPerCaller",
        "unread responses of one caller",
        "tests/attacks/test_quotas.py",
        "test_key_has_bounded_bytes_of_unread_answers",
    ),
    Cap(
        "server.limits.callsPerCaller",
        "calls of one caller in progress",
        "tests/attacks/test_quotas.py",
        "test_key_has_bounded_calls",
    ),
    Cap(
        "server.limits.streamsPerCaller",
        "open streams of one caller",
        "tests/attacks/test_quotas.py",
        "test_key_has_bounded_streams",
    ),
    Cap(
        "server.limits.sessionsPerCaller",
        "2025 sessions of one caller",
        "tests/attacks/test_quotas.py",
        "test_key_has_bounded_sessions",
    ),
    Cap(
        "server.limits.sessions",
        "2025 sessions open at once",
        "tests/server/test_fast_sessions.py",
        "test_session_idle_longest_is_evicted_for_a_new_one",
    ),
    Cap(
        "gateway.server.sdk_path.resumable_sessions:MAX_EVENTS_PER_STREAM",
        "events that a 2025 session can receive again",
        "tests/server/test_resumable_sessions.py",
        "test_old_events_and_old_streams_are_forgotten",
    ),
    Cap(
        "gateway.server.sdk_path.resumable_sessions:MAX_CHARACTERS",
        "the size of these events",
        "tests/server/test_resumable_sessions.py",
        "test_large_events_are_forgotten_soon",
    ),
    Cap(
        "policies.<source>.timeoutSeconds",
        "the working time of a call",
        "tests/gate/test_slots.py",
        "test_call_over_its_deadline_is_cancelled",
    ),
    Cap(
        "policies.<source>.maxConcurrency",
        "calls of a source at once",
        "tests/gate/test_slots.py",
        "test_calls_wait_for_slots_and_may_be_cancelled_while_waiting",
    ),
    Cap(
        "policies.<source>.maxResultBytes",
        "a result as the client gets it",
        "tests/interaction/test_results.py",
        "test_twenty_megabytes_of_json_arrive_as_head_and_stay_readable",
    ),
    Cap(
        "policies.<source>.maxKeptBytes",
        "a result that is kept",
        "tests/interaction/test_results.py",
        "test_result_too_large_to_keep_is_rejected_by_a_named_rule",
    ),
    Cap(
        "policies.<source>.sampling.maxRequests",
        "a server's requests for a model's answer",
        "tests/interaction/test_governed_asks.py",
        "test_the_budget_holds_over_a_restart_of_the_gateway",
    ),
    Cap(
        "policies.<source>.sampling.maxTokens",
        "the tokens of one sampling answer",
        "tests/policy/test_input_requests.py",
        "test_token_cap_only_lowers",
    ),
    Cap(
        "gateway.upstream.gateway_chain:MAX_HOPS",
        "gateways that a call goes through",
        "tests/upstream/test_gateway_chain.py",
        "test_call_through_too_many_gateways_is_rejected",
    ),
    Cap(
        "gateway.policy.tool_schemas:MAX_SCHEMA_DEPTH",
        "the depth of a tool's schema",
        "tests/policy/test_schema_check.py",
        "test_schema_nested_too_deeply_is_refused",
    ),
    Cap(
        "gateway.policy.tool_schemas:MAX_SCHEMA_NODES",
        "the size of a tool's schema",
        "tests/policy/test_schema_check.py",
        "test_schema_with_too_many_values_is_refused",
    ),
    Cap(
        "gateway.policy.tool_schemas:MAX_SCHEMA_COST",
        "the cost of checking arguments against a tool's schema",
        "tests/policy/test_schema_check.py",
        "test_arguments_too_large_for_a_large_schema_are_refused",
    ),
    Cap(
        "gateway.catalog.templates:MAX_TEMPLATE_CHARS",
        "a URI template",
        "tests/catalog/test_templates.py",
        "test_over_long_template_matches_nothing",
    ),
    Cap(
        "policies.<source>.connectTimeoutSeconds",
        "starting a server and negotiating with it",
        "tests/interaction/test_faults.py",
        "test_failing_server_is_reported_and_others_keep_serving",
    ),
    Cap(
        "policies.<source>.idempotent",
        "tools whose calls are resent after a broken connection, once",
        "tests/upstream/test_supervision.py",
        "test_call_running_at_server_death_is_retried_only_if_allowed",
    ),
    Cap(
        "gateway.upstream.connection:RETRY_SPACING_SECONDS",
        "connection attempts to a failing server: one at a time",
        "tests/upstream/test_supervision.py",
        "test_one_call_tries_a_failing_server_and_others_fail_at_once",
    ),
    Cap(
        "gateway.upstream.carriers.http_failures:MAX_RETRY_SECONDS",
        "the longest `Retry-After` of a server that is observed",
        "tests/upstream/test_supervision.py",
        "test_retry_after_of_a_server_is_respected",
    ),
    Cap(
        "gateway.upstream.transport:MAX_MESSAGE_BYTES",
        "a response, a line or an event of a server",
        "tests/interaction/test_faults.py",
        "test_response_over_the_limit_fails_at_once",
    ),
    Cap(
        "gateway.upstream.server_messages:MAX_OPEN_REQUESTS",
        "open requests of a server",
        "tests/upstream/test_pipe_carrier.py",
        "test_child_that_floods_requests_is_rejected_and_blocks_no_call",
    ),
    Cap(
        "gateway.upstream.server_messages:MAX_PENDING_NOTIFICATIONS",
        "a server's log messages that wait for slow callers",
        "tests/upstream/test_pipe_carrier.py",
        "test_unread_logs_are_dropped_and_change_notifications_kept",
    ),
    Cap(
        "gateway.upstream.pipe:MAX_UNREAD",
        "responses to a child process that does not read",
        "tests/upstream/test_pipe_carrier.py",
        "test_child_that_does_not_read_gets_no_buffered_responses",
    ),
    Cap(
        "gateway.wire.http1_client:MAX_HEAD_BYTES",
        "the head of a server's response",
        "tests/wire/test_http1_client.py",
        "test_ambiguous_or_endless_response_is_rejected",
    ),
    Cap(
        "gateway.upstream.listing:MAX_PAGES",
        "pages of a listing",
        "tests/upstream/test_limits.py",
        "test_endless_listing_is_cut_off",
    ),
    Cap(
        "gateway.upstream.listing:MAX_ENTRIES",
        "entries of a listing",
        "tests/upstream/test_limits.py",
        "test_endless_listing_is_cut_off",
    ),
    Cap(
        "gateway.upstream.listing:MAX_LISTING_CHARS",
        "the size of a listing",
        "tests/upstream/test_limits.py",
        "test_endless_listing_is_cut_off",
    ),
    Cap(
        "gateway.upstream.server_lists:REREAD_SPACING_SECONDS",
        "reads of a listing whose changes are announced",
        "tests/cli/test_reload.py",
        "test_reload_and_notification_are_limited_to_once_a_second",
    ),
    Cap(
        "server.maxChildProcesses",
        "server processes at once",
        "tests/upstream/test_child_processes.py",
        "test_server_idle_longest_is_stopped_for_a_new_one",
    ),
    Cap(
        "gateway.egress.guarded_fetch:MAX_BODY_BYTES",
        "a response from an address that a peer named",
        "tests/egress/test_guarded_fetch.py",
        "test_answer_too_large_is_refused_while_it_comes",
    ),
    Cap(
        "gateway.egress.bounded_transport:MAX_ANSWER_BYTES",
        "a response of a model or remote agent",
        "tests/attacks/test_outbound.py",
        "test_answer_without_end_is_cut_off",
    ),
    Cap(
        "gateway.telemetry.export_limits:MAX_ANSWER_BYTES",
        "a response of a telemetry collector",
        "tests/telemetry/test_export_limits.py",
        "test_response_is_bounded_and_redirects_are_not_followed",
    ),
    Cap(
        "storage.resultTtlSeconds",
        "how long a result is kept",
        "tests/interaction/test_results.py",
        "test_results_expire_and_are_swept_while_the_gateway_runs",
    ),
    Cap(
        "storage.s3.timeoutSeconds",
        "writing or reading one result in object storage",
        "tests/interaction/test_object_storage.py",
        "test_silent_storage_refuses_only_results_that_must_be_kept",
    ),
    Cap(
        "gateway.storage.object_bucket:CHECK_SECONDS",
        "the check of the bucket at the start",
        "tests/interaction/test_object_storage.py",
        "test_silent_storage_ends_the_start_within_ten_seconds",
    ),
    Cap(
        "sessions.maxPerCaller",
        "sessions of one caller",
        "tests/interaction/test_sessions.py",
        "test_session_of_another_caller_reads_as_unknown",
    ),
    Cap(
        "sessions.waitSeconds",
        "waiting for a busy session",
        "tests/interaction/test_sessions.py",
        "test_second_call_on_a_session_waits_and_is_then_rejected_as_busy",
    ),
    Cap(
        "tasks.maxPerCaller",
        "unfinished tasks of one caller",
        "tests/tasks/test_durable.py",
        "test_unfinished_tasks_per_caller_are_limited",
    ),
    Cap(
        "tasks.maxRunningPerCaller",
        "tasks of one caller that run",
        "tests/tasks/test_turns.py",
        "test_tasks_queue_by_the_limits_of_server_workflow_and_caller",
    ),
    Cap(
        "policies.<source>.tasks.maxWaitSeconds",
        "the working time of a task",
        "tests/interaction/test_tasks.py",
        "test_call_run_as_task_has_the_task_time_limit",
    ),
    Cap(
        "skills.scripts.timeoutSeconds",
        "the time of a skill's script",
        "tests/skills/test_sandbox.py",
        "test_timeout_ends_all_processes",
    ),
    Cap(
        "skills.scripts.diskMb",
        "all that a skill's script writes",
        "tests/attacks/test_scripts.py",
        "test_run_cannot_write_more_than_its_limit",
    ),
    Cap(
        "skills.scripts.diskFiles",
        "files that a skill's script creates",
        "tests/attacks/test_scripts.py",
        "test_run_cannot_make_more_files_than_its_limit",
    ),
    Cap(
        "skills.scripts.memoryMb",
        "the memory of a skill's script",
        "tests/skills/test_sandbox.py",
        "test_memory_is_limited",
    ),
    Cap(
        "gateway.auth.signed_tokens:MAX_TOKEN_LENGTH",
        "an access token",
        "tests/attacks/test_access_tokens.py",
        "test_wrong_token_gets_the_challenge_and_nothing_else",
    ),
    Cap(
        "gateway.auth.signing_keys:REFETCH_SECONDS",
        "requests for keys that tokens with invented key ids cause",
        "tests/auth/test_access_tokens.py",
        "test_invented_key_ids_do_not_burden_the_issuer",
    ),
    Cap(
        "gateway.auth.introspection:MAX_WAITING",
        "opaque tokens that wait for their issuer",
        "tests/auth/test_access_tokens.py",
        "test_flood_of_opaque_tokens_is_bounded",
    ),
    Cap(
        "gateway.auth.access_tokens:VERIFY_SECONDS",
        "the check of one access token",
        "tests/auth/test_access_tokens.py",
        "test_silent_issuer_ends_the_check_in_time",
    ),
    Cap(
        "gateway.auth.access_tokens:MAX_REMEMBERED",
        "valid access tokens that are remembered",
        "tests/auth/test_access_tokens.py",
        "test_memory_for_tokens_is_bounded",
    ),
    *(Cap(*limit) for limit in AUDIT_LIMITS),
)


def caps_table() -> str:
    """Return the section "Limits" of docs/faults.md."""
    lines = ["\n## Limits\n", "What one peer can use, each with the test that shows it.\n", "| Limit | Of what | Test |", "|---|---|---|"]
    lines += [f"| `{cap.of}` | {cap.bounds} | `{cap.path}`: {cap.test.removeprefix('test_').replace('_', ' ')} |" for cap in CAPS]
    return "\n".join(lines) + "\n"
