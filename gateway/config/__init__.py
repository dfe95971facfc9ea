"""The configuration: reads `gateway.json`, expands references such as `${VAR}`, validates the result, and generates JSON Schemas.

The package that uses a setting decides what the setting means. Entry points are `load.load_config`, `models.GatewayConfig`, `jsonc`
(JSON with comments: reading, and editing in place) and `json_schemas.build_schema`.
"""
