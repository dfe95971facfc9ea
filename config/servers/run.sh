#!/usr/bin/env bash
# Starts the bundled HTTP server `units`, waits until it listens, and becomes the gateway: `run.sh [ARGS of moongate run]`.
# If another program has the gateway's port or port 8766 of `units`, the next free one is used. `units` ends with the gateway. If UNITS_PORT
# is set and that port is taken, `units` is not started, and the gateway uses what listens there.
set -euo pipefail
echo "Starting Moongate and the bundled servers" >&2
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
port=(--port "${UNITS_PORT:-8766}")
[ -n "${UNITS_PORT:-}" ] || port+=(--or-any)
exec 3< <(exec "${MOONGATE_PYTHON:-python}" "$here/units.py" "${port[@]}" --while-runs $$ < /dev/null)
url=""
read -r -t 15 url <&3 || true
exec 3<&-
if [[ "$url" =~ :([0-9]+)/ ]]; then export UNITS_PORT="${BASH_REMATCH[1]}"; fi
exec moongate run --or-any-port "$@"
