#!/usr/bin/env bash
# Builds the image of the Dockerfile without a container daemon and without a registry: `deploy/build-image.sh FOLDER`.
#
# The base image is Debian bookworm with its Python, made by mmdebstrap; buildah builds the Dockerfile on it. Python packages are fetched
# by this machine's pip, so the build itself needs no network. Needs Debian, root, `mmdebstrap`, `buildah`, and a Python of the same version
# as Debian's (3.11). Leaves in FOLDER: base.tar (made once), packages/, image/ (manifest, configuration and compressed layers, as
# `skopeo copy dir:FOLDER/image docker://…` reads them), digest, config.json (user, environment, commands and health check), sbom.cdx.json,
# and rootfs/ (the files of the image). The manifest has Docker's format, because that of OCI has no health check.
set -euo pipefail
cd "$(dirname "$0")/.."
out="$(mkdir -p "$1" && cd "$1" && pwd)"
python="${PYTHON:-/usr/bin/python3}"
extras="${EXTRAS:-postgres,telemetry,temporal,s3,cedar}"
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
storage="$(mktemp -d)"
trap 'rm -rf "$storage"' EXIT
buildah() { command buildah --root "$storage/root" --runroot "$storage/run" "$@"; }

if [ ! -f "$out/base.tar" ]; then
  echo "base: mmdebstrap"
  mmdebstrap --quiet --variant=essential --include=python3,python3-venv,ca-certificates \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$out/base.tar"
fi

if [ ! -f "$out/packages/.complete-$extras" ] || [ pyproject.toml -nt "$out/packages/.complete-$extras" ]; then
  echo "packages: pip download"
  mkdir -p "$out/packages"
  "$python" -m venv "$storage/pip"
  "$storage/pip/bin/pip" install --quiet --disable-pip-version-check --upgrade pip
  "$storage/pip/bin/pip" download --quiet --disable-pip-version-check --only-binary :all: --dest "$out/packages" \
    "hatchling>=1.27,<2" "cyclonedx-bom>=7,<8"
  "$storage/pip/bin/pip" wheel --quiet --disable-pip-version-check --wheel-dir "$out/packages" --find-links "$out/packages" ".[$extras]"
  rm -f "$out"/packages/moongate-*.whl
  touch "$out/packages/.complete-$extras"
fi

echo "image: buildah"
base="$(buildah from scratch)"
buildah add --quiet "$base" "$out/base.tar" / >/dev/null
buildah commit --quiet "$base" localhost/moongate-base >/dev/null
buildah rm "$base" >/dev/null
buildah bud --quiet --layers=false --volume "$out/packages:/packages:ro" \
  --build-arg PYTHON_IMAGE=localhost/moongate-base --build-arg "EXTRAS=$extras" \
  --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/packages \
  --build-arg "REVISION=${REVISION:-$(git rev-parse HEAD 2>/dev/null || true)}" --format docker --tag localhost/moongate --file Dockerfile . >/dev/null
rm -rf "$out/image"
buildah push --quiet --format v2s2 localhost/moongate "dir:$out/image"
echo "sha256:$(sha256sum "$out/image/manifest.json" | cut -d' ' -f1)" > "$out/digest"
buildah inspect --type image localhost/moongate | "$python" -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["Docker"]["config"]))' \
  > "$out/config.json"
container="$(buildah from localhost/moongate)"
place="$(buildah mount "$container")"
cp "$place/opt/moongate/share/moongate/sbom.cdx.json" "$out/sbom.cdx.json"
rm -rf "$out/rootfs" && mkdir "$out/rootfs" && cp -a "$place/." "$out/rootfs/"
buildah umount "$container" >/dev/null
echo "built $out/image: $(( $(du --bytes --summarize "$out/image" | cut -f1) / 1000000 )) MB compressed, $(cat "$out/digest")"
