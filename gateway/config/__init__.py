"""The configuration: reads `gateway.json`, expands references, validates, and exports JSON Schemas.

The meaning of a setting is decided by the package that uses it. Entry points are `load.load_config`, `models.GatewayConfig`, `jsonc`
(reading and editing in place) and `schema.build_schema`.
"""
