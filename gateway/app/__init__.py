"""The composition root: turns a configuration into a running gateway, and applies changes of it.

`gateway` composes, `remote_servers` and `local_sources` hold the sources, `reload` follows the configuration file, `lock_file` the lock
file, `acceptance` holds back what a person must accept first, and `serving` serves clients. Only the command line is above this package.
`Gateway` loads on first use, because commands use the other modules without it.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
