"""Pure judgement: which tools exist, which arguments pass, what a server may ask, how large a result may be.

Every function takes plain data (names, decoded JSON, byte counts) and returns `Pass`, `Rewrite` or `Reject`;
nothing here waits, logs or knows a transport. `tools.guard`, the catalog and `upstream.inputs` act on the verdicts.

Decided: JSON Schema is checked by `jsonschema-rs`, without retrieval and with linear-time regular expressions.
Because: schemas come from peers. A pure Python validator costs 300 times more per call, and Python's `re` can be
made to hang by a pattern. Instead of: `jsonschema`, `fastjsonschema` (it compiles a peer's text to Python code).
Revisit when: the library stops being maintained, or a wheel is missing for a platform people ask for.
"""
