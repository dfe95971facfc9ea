"""The gateway's own state on disk: the state folder, the one way files are written, and the database.

Decided: what is looked up, counted or appended lives in `gateway.db` (SQLAlchemy Core, SQLite in WAL mode) behind `records`,
which opens it on first use; what is one small value (the installation's id and key, the API keys) stays a file that is
written whole and swapped in. Because: the database costs a third of a second to import, which a start over stdio must not
wait for, and a gateway that asks nothing needs none. Instead of: one store for all. Revisit: when a fleet shares its state
and the files have to move to the database's server too.
"""
