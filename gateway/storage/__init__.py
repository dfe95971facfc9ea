"""The gateway's own state on disk: the state folder and the one way files are written.

Decided: for now the state is two small files in a private folder, the installation's id and the API keys, each
written whole and swapped in. Because: nothing of this release is relational, and a database would cost its import at
every start. Instead of: opening `gateway.db` (SQLAlchemy Core, house.md decision 5) with no table to put in it.
Revisit: with the first issue that keeps sessions, history, pins, an audit record or tasks; the database arrives
here with its migrations, and `files` and `state` stay as they are.
"""
