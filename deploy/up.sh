#!/usr/bin/env bash
# Starts compose.yaml: `make up`. Creates missing secrets first. A gateway does not listen beyond loopback without an API key, so the first
# key is created before the gateways start; it is in deploy/secrets/api-key. Needs Docker with Compose 2, and openssl.
set -euo pipefail
cd "$(dirname "$0")/.."
secrets=deploy/secrets
# The folder is closed to other users. Its files are readable, because the containers run as users of their own.
mkdir -p "$secrets" && chmod 0700 "$secrets"
if [ ! -s "$secrets/database-password" ]; then
  openssl rand -hex 24 | tr -d '\n' > "$secrets/database-password"
fi
if [ ! -s "$secrets/tls.key" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj "/CN=${TLS_NAME:-localhost}" \
    -addext "subjectAltName=DNS:${TLS_NAME:-localhost},DNS:localhost,IP:127.0.0.1" \
    -keyout "$secrets/tls.key" -out "$secrets/tls.crt" 2>/dev/null
fi
chmod 0644 "$secrets/database-password" "$secrets/tls.crt" "$secrets/tls.key"
if [ "${1:-}" = --secrets-only ]; then exit 0; fi
docker compose build
if [ ! -s "$secrets/api-key" ]; then
  (umask 0077 && docker compose run --rm -T gateway-1 keys add first > "$secrets/api-key.new")
  mv "$secrets/api-key.new" "$secrets/api-key"
fi
docker compose up --detach --wait
echo "Moongate serves https://localhost:8443/mcp (certificate: $secrets/tls.crt, API key: $secrets/api-key)"
