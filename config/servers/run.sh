#!/usr/bin/env bash
# Starts the bundled HTTP server `units`, waits until it listens, and becomes the gateway: `run.sh [ARGS of moongate run]`.
# `units` ends with the gateway. If its port is taken, somebody already runs it, and the gateway uses that one.
set -euo pipefail
echo "Starting Moongate and the bundled servers" >&2
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec 3< <(exec "${MOONGATE_PYTHON:-python}" "$here/units.py" --port "${UNITS_PORT:-8766}" --while-runs $$ < /dev/null)
read -r -t 15 _ <&3 || true
exec 3<&-
exec moongate run "$@"
