"""API keys (`ApiKeys`), the callers that they identify (`Principal`), and proofs that a gateway is the expected one (`Identity`).

`policy` decides what a caller may do. The packages `app`, `server` and `gate` and the command line use API keys; most packages use
`Principal`. The command line checks the proof of a running gateway before it sends an API key.
"""
