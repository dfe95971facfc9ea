"""Stores the gateway's state: the state folder, atomic writing of files, the database, and large results, also in object storage.

Decided: data that is searched, counted or appended is stored in the database `gateway.db` (SQLAlchemy Core, SQLite in WAL mode), which
`records` opens on first use. Single small values (installation key, API keys) are files that are replaced as a whole. Because: importing
the database driver takes a third of a second, for which a start over stdio must not wait, and many gateways never need it. Instead of: one
store for everything. Revisit when: several machines share one state, so that the files must move to the database server too.
"""
