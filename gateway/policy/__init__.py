"""Pure decisions: which tools exist, which arguments are accepted, what a server may request, how large a result may be.

Every function takes plain data (names, decoded JSON, byte counts) and returns `Pass`, `Rewrite` or `Reject`. Nothing here waits, logs or
depends on a transport. `gate.tools`, the catalog and `upstream.inputs` act on the verdicts.

Decided: `jsonschema-rs` checks JSON Schema, without retrieval and with linear-time regular expressions. Because: schemas come from peers;
a pure Python validator costs 300 times more per call, and a pattern can make Python's `re` hang. Instead of: `jsonschema`,
`fastjsonschema` (it compiles a peer's text to Python code). Revisit when: the library is no longer maintained, or lacks a wheel for a
requested platform.
"""
