"""The rows of the fault matrix and of the attack list: each fault or attack, and the property that must hold.

A test says which row it proves with `@pytest.mark.fault(N)` or `@pytest.mark.attack(N)`; a row without a test says why there is
none. `make faults-report` runs all these tests and writes docs/faults.md from this table and what came of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One fault or attack. `without` says why no test proves it: the gateway has no such part, or what is missing."""

    what: str
    holds: str
    without: str = ""


FAULTS: dict[int, Row] = {
    1: Row(
        "`kill -9` between recording a task and telling its id",
        "a repeated request with the same idempotency key starts nothing twice",
    ),
    2: Row("`kill -9` at every step of a ten-step run", "the result is right, no finished step runs twice, one in flight at most twice"),
    3: Row("`kill -9` while a task waits for a person, who answers while no process runs", "the answer is found and used once"),
    4: Row("`kill -9` during a cancellation", "the task ends cancelled or completed, never both, and is never stuck"),
    5: Row(
        "SIGTERM with calls running and streams open",
        "calls finish within the set time, streams end at once, nothing is cut unannounced",
    ),
    6: Row("SIGSTOP until the lease is lost, then SIGCONT, beside a live peer", "one recorded outcome"),
    7: Row("two gateways on one state, one killed", "the other takes its tasks over within seconds"),
    8: Row("a task started on one gateway, polled, answered and cancelled on another", "as on the first"),
    9: Row("the database server stops and comes back", "calls that need it fail fast and clearly; tasks go on after"),
    10: Row("the database server is killed in the middle of commits", "every reported success was recorded"),
    11: Row("the notification channel of the database is down", "nothing is missed", "the gateway uses no such channel: it polls"),
    12: Row(
        "the disk of the state is full, read-only, or fails",
        "calls go on; what needs state says why; all is well when there is room, without a restart",
    ),
    13: Row("the database file is locked by another process", "bounded waiting, a clear warning, nothing recorded is lost"),
    14: Row("the clock moves by days", "waits and times to live hold, nothing expires in bulk"),
    15: Row("an upgrade with unfinished tasks, on databases kept of earlier versions", "they finish under the new version"),
    16: Row(
        "a server refuses connections, is a black hole, fails TLS",
        "an error within the connect timeout; one probe at a time afterwards",
    ),
    17: Row("a server hangs in the middle of an answer or drips bytes", "the deadline holds, its slot is free again"),
    18: Row("a server's connection breaks after N bytes, for every N", "a clear error, no side effect twice"),
    19: Row("a server says what is no JSON, another id, a wrong type, an answer twice", "an error to that caller only"),
    20: Row("a server answers with far too much: size, pages, compression", "cut off at the cap, memory stays bounded"),
    21: Row("a server answers 401, 403, 429, 5xx in storms", "a token is refreshed once, waits are kept, no storm of repeats"),
    22: Row(
        "a server announces changes 1,000 times a second or changes its tools",
        "read and told at most once a second; pinned definitions hold",
    ),
    23: Row("a child process floods, ignores signals, dies, leaves children", "it costs itself only; nothing is left behind"),
    24: Row(
        "clients leave in the middle of calls and streams, hundreds of times",
        "calls are cancelled; no descriptor, task or memory leaks",
    ),
    25: Row("clients send or read byte by byte", "they are ended in time; honest clients do not notice"),
    26: Row("10,000 malformed messages", "each is refused by itself, none crashes, none is a server's failure"),
    27: Row("descriptors run out", "idle connections give way; if all are busy, new ones are refused with 503"),
    28: Row(
        "a model's endpoint times out, refuses, breaks its stream, sends bad arguments",
        "repeats within a budget; the run fails with the reason",
    ),
    29: Row(
        "the identity provider is down or rotates keys",
        "cached keys go on",
        "callers authenticate with API keys that the gateway stores; inbound OAuth does not exist",
    ),
    30: Row("the configuration becomes unreadable or loses a server in use", "the old one stays; calls finish; the reason is logged"),
    31: Row("hours of load with faults in between", "memory, descriptors and children stay flat"),
    32: Row(
        "a server floods a call with progress or log messages",
        "its client gets a bounded number, the last progress before the result; other calls go on meanwhile",
    ),
    33: Row(
        "the gateway gets no processor time while sessions move and requests arrive",
        "no session or call is lost for it; a session that ends is logged with the reason",
    ),
    34: Row(
        "a client dies while its call waits for an answer",
        "the question and the call end within seconds, nothing more is sent for them, and others are served",
    ),
}

ATTACKS: dict[int, Row] = {
    1: Row("confused deputy through an OAuth proxy", "-", "the gateway is no OAuth proxy"),
    2: Row("a client's token passed on to a server", "nothing of a client's authorization leaves the gateway"),
    3: Row("addresses learned from peers that point inside (SSRF)", "checked when connecting; redirects are not followed"),
    4: Row("DNS rebinding on a local gateway", "Host and Origin are checked on every page; no open bind without keys"),
    5: Row("handles and sessions of another caller", "read as if they had never been"),
    6: Row("guessing task ids", "unguessable, and unknown to everybody else on every method"),
    7: Row("answers that reach the wrong caller", "none of thousands under load"),
    8: Row("a start command smuggled in through the network", "no request of any kind starts a program"),
    9: Row("command, arguments or environment set by an API", "no route takes them"),
    10: Row(
        "what a script of a skill may touch",
        "nothing outside its copy, not even names and modes; no network; with one, nothing on its own machine; "
        "bounded memory, time, disk and output",
    ),
    11: Row("instructions and invisible text in definitions", "hidden text is taken out or the tool refused"),
    12: Row("a definition that changes after it was approved, or first listed", "it is held back, and the call does not reach it"),
    13: Row("look-alike names and texts about another server's tools", "told apart and named"),
    14: Row("arguments nobody declared", "never leave the gateway"),
    15: Row("instructions in results", "hidden text is taken out; after untrusted content a sink needs a person"),
    16: Row("sampling without end", "a budget per server that survives restarts"),
    17: Row(
        "phishing by forms and URLs",
        "no text of a form asks for a secret in any disguise; links lead to public names over https; no line of a server passes for ours",
    ),
    18: Row("OAuth mix-up, foreign state, unsafe metadata", "no token is earned"),
    19: Row("scopes that grow", "a key is shown what it is for, and refused the rest on every way in"),
    20: Row("arguments misused within their schema", "rules on values hold and cannot be bypassed"),
    21: Row("oversize, depth, compression, endless lists", "refused or cut off while they come"),
    22: Row("slow-loris and floods of connections", "ended within the set times; honest calls are answered meanwhile"),
    23: Row("patterns that take for ever", "answered at once"),
    24: Row("schemas that explode or fetch", "refused; nothing is ever fetched for a schema"),
    25: Row("headers that disagree with the body, split or inject", "refused with 400"),
    26: Row("request smuggling, doubled keys", "refused, or read in one way by judge and server alike"),
    27: Row("line breaks and terminal codes in logs", "one event is one line, controls are shown, not sent"),
    28: Row("secrets in logs, errors, pages", "none, anywhere"),
    29: Row("secrets at rest", "sealed, or readable by their user alone"),
    30: Row("path traversal and links in skills, resources, ids", "nothing outside is read"),
    31: Row("forged tokens", "-", "no inbound OAuth: API keys are compared by hash"),
    32: Row("malformed input that kills", "the gateway answers the next honest request; no traceback"),
    33: Row("state that runs code when it is loaded", "JSON only; unknown classes are never made"),
    34: Row("packages that change under one name", "`doctor` and `lock` name a server started from `…@latest` or no version"),
    35: Row("calls that go in circles", "refused by depth and by where they have been"),
    36: Row("files and sockets that the gateway's parent left open", "no program that the gateway starts inherits one"),
    37: Row(
        "an agent's folder that holds the configuration, code or state",
        "refused when it is loaded, after a reload and at each run; the gateway serves the rest",
    ),
    38: Row(
        "tools and functions that agents and workflows bring along themselves",
        "they pass the gate of their own source: rules, approvals, limits and audit",
    ),
    39: Row("facts of the gateway's own forged in `_meta`", "neither a client nor a server sets one, on any path"),
    40: Row(
        "a caller that approves its own call or makes a standing rule",
        "only an operator, or another principal where the rules say so, decides; on every path",
    ),
    41: Row(
        "a configuration file that somebody changes while the gateway runs",
        "no new or changed command, module or script runs before a person accepts it, restarts included",
    ),
    42: Row(
        "one key, or a peer without a key, that takes all calls, streams, sessions, connections or memory",
        "refused at its own share and before a body is read; other keys, `/health`, `/ready` and administrators are served meanwhile",
    ),
    43: Row("another program on the port of a gateway that does not run", "the command line sends it neither an API key nor a call"),
}
