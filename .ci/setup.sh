#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what building and checking Tributary needs and this machine lacks. What is there already is left as it
# is, and costs no time. One or more words say what:
#
#     bash .ci/setup.sh base rust lints protoc deny
#
# `toolchain` installs nothing: it prints the name of the Rust toolchain to use.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="${CACHE:-$HOME/.cache/tributary}"
deny_version=0.20.2

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# Installs Debian packages where that is possible, otherwise says what is missing.
need_packages() {
    local what="$1"
    shift
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "$what is missing; install it (Debian: sudo apt-get install $*), then try again"
    fi
    say "$what is missing: installing $*"
    # Another process may hold the package database for a moment.
    apt-get -o DPkg::Lock::Timeout=120 update -qq >&2 </dev/null || say "the package lists could not be refreshed"
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq --no-upgrade \
        --no-install-recommends "$@" >&2 </dev/null || die "cannot install $*; $what is needed"
}

# Compiler and scripting language: some dependencies compile C, and the rules over the workspace are Python.
setup_base() {
    command -v make >/dev/null || need_packages make make
    { command -v cc && command -v c++; } >/dev/null || need_packages "a C compiler" gcc g++ libc6-dev
    command -v python3 >/dev/null || need_packages "Python 3" python3
}

pinned_toolchain() { sed -n 's/^channel *= *"\(.*\)".*/\1/p' "$root/rust-toolchain.toml"; }

# True if rustup has a toolchain of this name (with or without the host's name behind it).
has_toolchain() {
    local name
    while read -r name _; do
        if [ "$name" = "$1" ] || [[ $name == "$1"-*-*-* ]]; then return 0; fi
    done < <(rustup toolchain list)
    return 1
}

# The pinned toolchain if it is installed, else one under another name (`stable`, say) that is the same release: a
# machine without access to Rust's own download site can build with that.
find_toolchain() {
    local pinned name
    pinned="$(pinned_toolchain)"
    if has_toolchain "$pinned"; then
        echo "$pinned"
        return
    fi
    while read -r name _; do
        if [[ "$(rustup run "$name" rustc --version 2>/dev/null </dev/null)" == "rustc $pinned "* ]]; then
            echo "$name"
            return
        fi
    done < <(rustup toolchain list)
}

# Always a name, so that a missing toolchain is reported, and installed, by its own.
name_toolchain() {
    local found
    found="$(find_toolchain)"
    echo "${found:-$(pinned_toolchain)}"
}

setup_rust() {
    local pinned
    pinned="$(pinned_toolchain)"
    command -v cargo >/dev/null || die "Rust is missing; install Rust $pinned with rustup"
    if ! command -v rustup >/dev/null; then
        # Without rustup nobody reads rust-toolchain.toml, so look at what is there.
        [[ "$(rustc --version)" == "rustc $pinned "* ]] || say "found $(rustc --version); tested with $pinned"
        return
    fi
    if [ -n "$(find_toolchain)" ] || { [ -n "${RUSTUP_TOOLCHAIN:-}" ] && has_toolchain "$RUSTUP_TOOLCHAIN"; }; then
        return
    fi
    say "installing Rust $pinned"
    rustup toolchain install "$pinned" --profile minimal --component rustfmt --component clippy >&2 </dev/null ||
        die "cannot install Rust $pinned, and no installed toolchain is of that release"
}

setup_lints() {
    local component
    for component in rustfmt clippy; do
        if cargo "${component/rust/}" --version >/dev/null 2>&1; then continue; fi
        command -v rustup >/dev/null || die "$component is missing; install it for $(rustc --version)"
        say "$component is missing: adding it"
        rustup component add "$component" >&2 </dev/null || die "cannot add $component"
    done
}

# True if protoc is there with the well-known types, which some packages bring apart from it.
works_protoc() {
    local folder code=0
    folder="$(mktemp -d)"
    printf 'syntax = "proto3";\nimport "google/protobuf/empty.proto";\nmessage M { google.protobuf.Empty e = 1; }\n' \
        >"$folder/m.proto"
    "${PROTOC:-protoc}" -I "$folder" --descriptor_set_out="$folder/m.bin" "$folder/m.proto" >/dev/null 2>&1 || code=$?
    rm -rf "$folder"
    return "$code"
}

# Our own .proto files are compiled without it; a dependency of hudi-core insists on one.
setup_protoc() {
    if works_protoc; then return; fi
    if [ -n "${PROTOC:-}" ]; then
        [ -x "$PROTOC" ] || command -v "$PROTOC" >/dev/null || die "PROTOC is set to $PROTOC, which is no program"
        die "PROTOC is set to $PROTOC, which does not find google/protobuf/empty.proto: install its include folder"
    fi
    need_packages "protoc, the Protocol Buffers compiler," protobuf-compiler libprotobuf-dev
    works_protoc || die "protoc is installed and does not find google/protobuf/empty.proto"
}

setup_deny() {
    if [ "$("$cache/bin/cargo-deny" --version 2>/dev/null)" = "cargo-deny $deny_version" ]; then return; fi
    say "building cargo-deny $deny_version, once, a few minutes"
    # Not in our target folder: it shares no settings with the workspace and would only swell it.
    env -u CARGO_TARGET_DIR cargo install cargo-deny --locked --version "$deny_version" --root "$cache" \
        >&2 </dev/null || die "cannot build cargo-deny $deny_version"
}

cd "$root"
if [ -z "${RUSTUP_TOOLCHAIN:-}" ] && command -v rustup >/dev/null; then
    RUSTUP_TOOLCHAIN="$(name_toolchain)"
    export RUSTUP_TOOLCHAIN
fi
for part in "$@"; do
    case "$part" in
        base | rust | lints | protoc | deny) "setup_$part" ;;
        toolchain) echo "${RUSTUP_TOOLCHAIN:-}" ;;
        *) die "unknown part $part; known: base rust lints protoc deny toolchain" ;;
    esac
done
