#!/usr/bin/env bash
# Makes sure that there are PostgreSQL's programs for `make postgres`: those on PATH, else Debian's package. Safe to repeat.
set -euo pipefail
command -v initdb >/dev/null && exit 0
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
  echo "Install PostgreSQL, so that initdb and postgres are on PATH." >&2
  exit 1
fi
as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
