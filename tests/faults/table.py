"""The rows of the fault matrix and of the attack list: each fault or attack, and the property that must hold.

A test says which row it proves with `@pytest.mark.fault(N)` or `@pytest.mark.attack(N)`; a row without a test says why there is
none. `make faults-report` runs all these tests and writes docs/faults.md from this table and what came of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One fault or attack. `without` is the reason if no test proves the row."""

    what: str
    holds: str
    without: str = ""


FAULTS: dict[int, Row] = {
    1: Row(
        "`kill -9` between recording a task and telling its id",
        "a repeated request with the same idempotency key starts no second task",
    ),
    2: Row("`kill -9` at every step of a ten-step run", "the result is right; a finished step runs once, a step in flight at most twice"),
    3: Row("`kill -9` while a task waits for a person, who answers while no process runs", "the answer is found and used once"),
    4: Row("`kill -9` during a cancellation", "the task ends cancelled or completed, never both, and is never stuck"),
    5: Row(
        "SIGTERM while calls run and streams are open",
        "calls may finish within `drainSeconds`, also if their client continued the stream; other streams end at once; "
        "every ended call gets an error",
    ),
    6: Row("SIGSTOP until the lease is lost, then SIGCONT, while another gateway runs", "one recorded outcome"),
    7: Row("two gateways share the state; one is killed", "the other takes its tasks over within seconds"),
    8: Row(
        "a task started on one gateway, polled, answered and cancelled on another", "the second gateway gives the same results as the first"
    ),
    9: Row("the database server stops and comes back", "calls that need it fail at once with the reason; tasks continue afterwards"),
    10: Row(
        "the database server is killed in the middle of commits, and comes back or is replaced by its standby",
        "no success is reported that was not recorded",
    ),
    11: Row("the notification channel of the database is down", "no change is missed", "the gateway polls instead of using such a channel"),
    12: Row(
        "the disk of the state is full, read-only, or fails",
        "calls continue; operations that need the state fail with the reason, and recover without a restart",
    ),
    13: Row("the database file is locked by another process", "waiting is bounded, the log has a warning, and no record is lost"),
    14: Row("the clock moves by days", "waiting times and lifetimes stay right; no mass expiry"),
    15: Row("an upgrade with unfinished tasks, on databases of earlier versions", "they finish under the new version"),
    16: Row(
        "a server refuses connections, never answers, or fails TLS",
        "an error within the connect timeout; afterwards one attempt at a time",
    ),
    17: Row("a server stops in the middle of a response, or sends it byte by byte", "the call ends at its deadline and frees its slot"),
    18: Row("a server's connection breaks after N bytes, for every N", "an error with the reason; no side effect happens twice"),
    19: Row("a server sends text that is not JSON, a wrong id, a wrong type, or a response twice", "only that caller gets an error"),
    20: Row("a server sends too much: bytes, pages, compressed data", "reading stops at the limit; memory stays bounded"),
    21: Row("a server answers 401, 403, 429, 5xx in storms", "a token is refreshed once; `Retry-After` is observed; retries are bounded"),
    22: Row(
        "a server announces changes 1,000 times a second or changes its tools",
        "lists are read, and clients notified, at most once a second; changed pinned tools stay hidden",
    ),
    23: Row(
        "a child process floods the gateway, ignores signals, dies, or leaves children",
        "other servers are not affected; no process is left behind",
    ),
    24: Row(
        "clients disconnect during calls and streams, hundreds of times",
        "calls are cancelled; no descriptor, task or memory leaks",
    ),
    25: Row("clients send or read byte by byte", "their connections are closed in time; other clients are not affected"),
    26: Row("10,000 malformed messages", "each is refused alone; none crashes the gateway or counts as a server's failure"),
    27: Row("file descriptors run out", "idle connections are closed; if all are busy, new ones are refused with 503"),
    28: Row(
        "a model's endpoint times out, refuses, breaks its stream, or sends bad arguments",
        "bounded retries; then the run fails with the reason",
    ),
    29: Row(
        "the identity provider is down or rotates keys",
        "cached keys stay valid",
        "callers have API keys of the gateway; there is no inbound OAuth",
    ),
    30: Row(
        "the configuration becomes unreadable or loses a server in use", "the old one stays in use; calls finish; the log has the reason"
    ),
    31: Row("hours of load with faults", "memory, descriptors and child processes do not grow"),
    32: Row(
        "a server floods a call with progress or log messages",
        "its client gets a bounded number, and the last progress before the result; other calls continue",
    ),
    33: Row(
        "the gateway gets no processor time while sessions move and requests arrive",
        "no session or call is lost; a session that ends is logged with the reason",
    ),
    34: Row(
        "a client dies while its call waits for an answer",
        "the question and the call end within seconds; nothing more is sent for them; other clients are served",
    ),
}

ATTACKS: dict[int, Row] = {
    1: Row("confused deputy through an OAuth proxy", "-", "the gateway is not an OAuth proxy"),
    2: Row("a client's token that reaches a server", "no part of a client's authorization leaves the gateway"),
    3: Row(
        "addresses from peers that lead into the private network (SSRF)", "addresses are checked on connecting; redirects are not followed"
    ),
    4: Row("DNS rebinding on a local gateway", "`Host` and `Origin` are checked on every path; an open bind needs keys"),
    5: Row("handles and sessions of another caller", "the same error as for an unknown id"),
    6: Row("guessing task ids", "ids cannot be guessed; every method treats another caller's id as unknown"),
    7: Row("responses that reach the wrong caller", "of thousands of responses under load, none does"),
    8: Row("a command that a network request tries to start", "no request starts a program"),
    9: Row("command, arguments or environment set by an API", "no route accepts them"),
    10: Row(
        "a script of a skill that reaches outside its sandbox",
        "it reaches nothing outside its copy, not even names and modes, and no network; with a network, nothing on its own machine; "
        "memory, time, disk and output are bounded",
    ),
    11: Row("instructions and invisible text in definitions", "hidden text is removed, or the tool is refused"),
    12: Row("a definition that changes after it was approved, or first listed", "the tool is hidden, and calls do not reach it"),
    13: Row("look-alike names and texts about another server's tools", "they are detected and named"),
    14: Row("arguments that the tool does not declare", "they never leave the gateway"),
    15: Row("instructions in results", "hidden text is removed; after untrusted content, a tool with external effects needs a person"),
    16: Row("endless sampling requests", "each server has a budget that survives restarts"),
    17: Row(
        "phishing by forms and URLs",
        "forms that ask for a secret are refused; links lead to public names over https; a server's lines are marked",
    ),
    18: Row("OAuth mix-up, foreign state, unsafe metadata", "the attacker gets no token"),
    19: Row("use beyond a key's scopes", "a key sees only what its scopes admit; everything else is refused on every path"),
    20: Row("harmful argument values within the schema", "rules for values cannot be bypassed"),
    21: Row("messages that are too large, too deep, compressed or endless", "they are refused while they arrive"),
    22: Row("slow-loris and floods of connections", "they are ended within the configured times; other calls are answered"),
    23: Row("regular expressions that take forever", "the call is answered at once"),
    24: Row("schemas that grow exponentially or refer to addresses", "they are refused; a schema never causes a request"),
    25: Row("headers that contradict the body, are split, or inject others", "they are refused with 400"),
    26: Row("request smuggling, duplicate keys", "they are refused, or the gateway and the server read them alike"),
    27: Row("line breaks and terminal codes in logs", "one event is one line; control characters are escaped"),
    28: Row("secrets in logs, errors and pages", "secrets appear in none of them"),
    29: Row("secrets at rest", "they are encrypted, or readable only by their user"),
    30: Row("path traversal and links in skills, resources and ids", "no file outside is read"),
    31: Row("forged, foreign and stale access tokens", "they get a 401 with the right challenge, on every path, and reach no server"),
    32: Row("malformed input that crashes the gateway", "the gateway answers the next valid request, without a traceback"),
    33: Row("state that runs code when it is loaded", "state is JSON; unknown classes are never created"),
    34: Row("packages that change behind one name", "`doctor` and `lock` name a server started from `…@latest` or no version"),
    35: Row("calls in a circle of gateways", "they are refused by depth, and by the gateways that they passed"),
    36: Row("files and sockets that the gateway's parent left open", "no program that the gateway starts inherits them"),
    37: Row(
        "an agent's folder that holds the configuration, code or state",
        "it is refused on loading, after a reload and at each run; everything else is served",
    ),
    38: Row(
        "tools and functions that files of agents and workflows add",
        "they pass the gate: rules, approvals, limits and audit",
    ),
    39: Row("forged `_meta` keys of the gateway", "neither a client nor a server can set one, on any path"),
    40: Row(
        "a caller that approves its own call or makes a standing rule",
        "only an operator decides, or another principal if the rules say so; on every path",
    ),
    41: Row(
        "a configuration file that somebody changes while the gateway runs",
        "no new or changed command, module or script runs before a person accepts it, even after a restart",
    ),
    42: Row(
        "one key, or a peer without a key, takes all calls, streams, sessions, connections or memory",
        "it is refused at its share, before a body is read; other keys, `/health`, `/ready` and administrators are served",
    ),
    43: Row("another program on the port of a gateway that does not run", "the command line sends it neither an API key nor a call"),
}
