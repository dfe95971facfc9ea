"""The decisions of the gateway as pure functions: which tools exist, which arguments are accepted, what a server may request, and so on.

Every function takes plain data (names, decoded JSON, byte counts, parts of the configuration). A rule that may change its input returns
`Pass`, `Rewrite` or `Reject`; other rules return `Pass` or `Reject`, a boolean, or the reason of a rejection or `None`. Time, counters and
the caller are parameters. No function waits, logs or depends on a transport. Packages such as `gate` and `catalog` act on the verdicts.

Decided: `jsonschema-rs` checks JSON Schema, without retrieval and with linear-time regular expressions. Because: schemas come from peers;
a pure Python validator costs 300 times more per call, and a pattern can make Python's `re` hang. Instead of: `jsonschema`,
`fastjsonschema` (it compiles a peer's text to Python code). Revisit when: the library is no longer maintained, or lacks a wheel for a
requested platform.
"""
