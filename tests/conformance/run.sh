#!/usr/bin/env bash
# The official server suite, end to end through the gateway: client suite -> gateway -> fixture upstream.
#   tests/conformance/run.sh [2025-11-25] [2026-07-28] [skills]
# Floors are checks that must pass; none may fail. One check of 2025-11-25 cannot cross a hop
# (server-sse-disconnect-resume), so 83 is all there is there.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
export CONFORMANCE_HOME="${CONFORMANCE_HOME:-$HOME/.cache/moongate-conformance}"
bash "$here/setup.sh" || { echo "conformance: the suite could not be installed" >&2; exit 3; }
py="$CONFORMANCE_HOME/py/bin/python"
suite="$CONFORMANCE_HOME/js/node_modules/@modelcontextprotocol/conformance/dist/index.js"
gateway="${GATEWAY_PYTHON:-$root/.venv/bin/python}"
legs=("$@"); [ ${#legs[@]} -gt 0 ] || legs=(2025-11-25 2026-07-28)
declare -A floors=([2025-11-25]=83 [2026-07-28]=152 [skills]=45)
work="$(mktemp -d)"; pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
# Listeners that Node programs open without a host stay on loopback.
export NODE_OPTIONS="--import=file://$here/loopback.mjs"

free_port() { "$py" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
await_http() {  # URL
  "$py" - "$1" <<'PY'
import sys, time, urllib.error, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=2)
        sys.exit(0)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            sys.exit(0)
    except OSError:
        pass
    time.sleep(0.1)
sys.exit(1)
PY
}

upstream_port=$(free_port); port=$(free_port)
"$py" "$here/fixture_server.py" --port "$upstream_port" > "$work/fixture.log" 2>&1 & pids+=($!)
await_http "http://127.0.0.1:$upstream_port/mcp" || { cat "$work/fixture.log"; exit 1; }
cat > "$work/gateway.json" <<JSON
{
  "mcpServers": {"fixture": {"type": "http", "url": "http://127.0.0.1:$upstream_port/mcp"}},
  "policies": {"fixture": {"prefix": "", "sampling": {"mode": "relay", "maxRequests": null}, "roots": {"mode": "relay"}}},
  "expose": {"skills": ["$root/skills"]},
  "storage": {"dir": "$work/state"}
}
JSON
"$gateway" -m gateway run --http "127.0.0.1:$port" --config "$work/gateway.json" > "$work/gateway.log" 2>&1 & pids+=($!)
await_http "http://127.0.0.1:$port/ready" || { cat "$work/gateway.log"; exit 1; }

worst=0
suite_run() {  # LEG ARGS...
  local leg="$1"; shift
  "$CONFORMANCE_HOME/bin/node" "$suite" server --url "http://127.0.0.1:$port/mcp" --timeout 30000 -o "$work/$leg" "$@" >> "$work/$leg.log" 2>&1
}
for leg in "${legs[@]}"; do
  rc=0; need=()
  case "$leg" in
    skills) for s in directory enumeration manifest; do suite_run skills --scenario "sep-2640-skills-$s" || rc=$?; need+=("sep-2640-skills-$s"); done ;;
    *) suite_run "$leg" --suite all --spec-version "$leg" || rc=$? ;;
  esac
  "$py" "$here/tally.py" "$work/$leg" --min-passed "${floors[$leg]:-1}" ${need[@]:+--need "${need[@]}"} || rc=1
  echo "conformance $leg: rc=$rc"
  [ "$rc" -eq 0 ] || { worst=1; tail -20 "$work/gateway.log"; }
done
exit $worst
