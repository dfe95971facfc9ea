"""Detects a gateway whose installation key differs from that of the other gateways on the same database. Used by `records`.

All derived keys depend on the installation key. A gateway with another key could not read the others' request states and task handles, and
its entries would break the chain of the audit log. Therefore the first gateway stores a digest of its key in the database, and a gateway
with another digest does not use the database.
"""

from __future__ import annotations

import hmac

import sqlalchemy as sa

from gateway.errors import StorageUnusable
from gateway.storage.engine import Database

PURPOSE = "installation-check"
"""Purpose of the derived key (`StateFolder.key`) that is stored as the digest. It reveals no other key."""

OTHER_KEY = (
    "The gateways of this database use another installation key than this gateway, so it does not use the database. Set "
    "`storage.installationKey` to the same secret in the configuration of each gateway, for example to the base64 text of the file "
    "`installation-key` in the state folder of the gateway that used the database first."
)


async def verify_installation(database: Database, check: bytes) -> None:
    """Compare this gateway's installation key with that of the database's gateways. The first gateway's key is stored.

    `check` is the derived key for `PURPOSE`.

    Raises:
        StorageUnusable: The other gateways use another installation key, or the database is unavailable.
    """
    stored = sa.text("SELECT digest FROM installation WHERE id = 1")
    async with database.begin() as connection:
        found = (await connection.execute(stored)).scalar_one_or_none()
        if found is None:
            first = sa.text("INSERT INTO installation (id, digest) VALUES (1, :digest) ON CONFLICT (id) DO NOTHING")
            await connection.execute(first, {"digest": check.hex()})
            found = (await connection.execute(stored)).scalar_one()
    if not hmac.compare_digest(str(found), check.hex()):
        raise StorageUnusable(OTHER_KEY, passes=False)
