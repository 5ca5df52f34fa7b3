#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on real tables: two Hudi tables that Spark wrote, merged into others, round by round.
#
# TRIBUTARY_BIN names the binary; TRIBUTARY_DEMO_DIR the directory to work in (a fresh temporary one when unset).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${TRIBUTARY_BIN:?TRIBUTARY_BIN must name the tributary binary; make demo sets it}
dir=${TRIBUTARY_DEMO_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/tributary-demo.XXXXXX")}
mkdir -p "$dir"
cd "$dir"
cp "$here"/*.toml "$here"/*.sql .
server=

stop() { if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi; }
trap stop EXIT

say() { printf '== %s\n' "$*"; }
unpack() { python3 -m zipfile -e "$here/../fixtures/demo/round$1.zip" .; }

"$bin" serve --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --data-dir data >serve.out 2>serve.log &
server=$!
for _ in $(seq 100); do grep -q '^listening on ' serve.out && break; sleep 0.1; done
url=http://$(sed -n 's/^listening on //p' serve.out)
[ "$url" != http:// ] || { echo "the server did not start:"; cat serve.log; exit 1; }

round() {
    say "$1"
    "$bin" run --brief --server "$url" --pipeline orders_enriched.toml
    "$bin" run --brief --server "$url" --pipeline user_activity.toml
}

unpack 1
round "round 1: the source tables as they are; what is read of each is a window (begin, end]"
unpack 2
round "round 2: after new commits in both"
round "round 3: nothing new"

say "the cursors, in the commits of the target itself"
"$bin" table inspect lake/orders_enriched | sed -n '/^commit/,$p'

batch=$("$bin" batches list --server "$url" --output json \
    | python3 -c 'import json,sys
for line in sys.stdin:
    batch = json.loads(line)
    if batch["outcome"] == "COMMITTED" and batch["batch"].startswith("orders_enriched/"):
        print(batch["batch"]); break')
say "the rows of the last batch, pulled over Arrow Flight"
"$bin" batches pull --server "$url" "$batch"

say "merge operators: three sparse events, a batch each; what one lacks stays, clicks are added"
mkdir -p events
number=0
for event in '{"A":"a1","C":"c4","D":"d6","clicks":1}' '{"A":"a1","B":"b4"}' '{"A":"a1","B":"b5","C":"c5","clicks":2}'; do
    number=$((number + 1))
    echo "$event" | tee "events/$number.json"
    "$bin" run --brief --server "$url" --pipeline profiles.toml >>runs.out
done
"$bin" table read lake/profiles

say "look further"
echo "cd $dir; PATH=$(dirname "$bin"):\$PATH"
echo "tributary plan --pipeline user_activity.toml"
echo "tributary table read lake/user_activity --limit 50"
