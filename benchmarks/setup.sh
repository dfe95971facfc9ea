#!/usr/bin/env bash
# Installs the peers (other gateways and proxies) below $BENCH_HOME (default ~/.cache/moongate-bench), each into its own environment.
# The script can be run again. It reports peers that cannot be installed and leaves them out. It does not install nginx, which is a system
# package. ContextForge needs Python 3.12 or 3.13; set CONTEXTFORGE_PYTHON to the path of that interpreter.
set -uo pipefail
here="$(dirname "${BASH_SOURCE[0]}")/../tests"
home="${BENCH_HOME:-$HOME/.cache/moongate-bench}"

part() {  # NAME COMMAND…
  local name="$1"; shift
  "$@" || echo "benchmarks: $name cannot be installed here and is left out" >&2
}

newest_python() {  # prints the path of the first interpreter in the arguments that runs
  local name
  for name in "$@"; do "$name" -c "" 2> /dev/null && { command -v "$name"; return; }; done
  echo "${PYTHON:-python3}"
}

# If the package index lacks dependencies of 4.1.6, installs 4.1.6 with the dependencies of 4.1.2, on which it runs too.
fastmcp() {
  local pip=("$home/fastmcp/bin/python" -m pip)
  "${pip[@]}" show fastmcp 2> /dev/null | grep -q "^Version: 4.1.6" && return
  bash "$here/install_python.sh" "$home/fastmcp" fastmcp==4.1.6 uvloop httptools 2> /dev/null && return
  bash "$here/install_python.sh" "$home/fastmcp" fastmcp==4.1.2 uvloop httptools &&
    "${pip[@]}" install --quiet --disable-pip-version-check --no-deps fastmcp==4.1.6 fastmcp-slim==4.1.6
}

part "FastMCP" fastmcp
part "ContextForge" env PYTHON="$(newest_python "${CONTEXTFORGE_PYTHON:-python3.13}" python3.13 python3.12)" \
  bash "$here/install_python.sh" "$home/contextforge" "mcp-contextforge-gateway>=1.1,<1.2" uvloop httptools
part "mcp-proxy (PyPI)" bash "$here/install_python.sh" "$home/mcp-proxy" "mcp-proxy==0.13.0" uvloop httptools
part "mcp-proxy (npm)" bash "$here/install_node.sh" "$home/node" mcp-proxy@6.7.19
command -v nginx > /dev/null || echo "benchmarks: nginx is not there and is left out (it is a package of the system)" >&2
exit 0
