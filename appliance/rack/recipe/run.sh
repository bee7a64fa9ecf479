#!/usr/bin/env bash
# Makes rack/small from nothing: random start, training over the server's own API, export in bf16, evaluation.
#
#   appliance/rack/recipe/run.sh WORK        # a folder for the server's data; run again, it goes on where it was
#
# Results: WORK/small, WORK/log.jsonl, WORK/evaluation.json. The committed ones were made by this.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
python=$root/.venv/bin/python smolgym=$root/bin/smolgym
export TINKER_API_KEY=tml-local PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

"$smolgym" serve --addr 127.0.0.1:0 --data "$work/data" >"$work/serve.log" 2>&1 &
trap 'kill %1 2>/dev/null; wait' EXIT
for _ in $(seq 100); do
    TINKER_BASE_URL=$(sed -n 's/^.* on \(http:[^ ]*\)$/\1/p' "$work/serve.log")
    [ -z "$TINKER_BASE_URL" ] || break
    sleep 0.1
done
export TINKER_BASE_URL

"$python" start.py "$work/start"
"$smolgym" model show local/small-start >/dev/null 2>&1 || "$smolgym" model add local/small-start "$work/start"
"$python" train.py local/small-start --log "$work/log.jsonl"
checkpoint=$("$python" -c 'import json, sys; print([json.loads(x) for x in open(sys.argv[1])][-1]["saved"])' "$work/log.jsonl")
rm -rf "$work/small"
"$smolgym" checkpoint export "$checkpoint" --to "$work/small" --form merged --dtype bf16
"$smolgym" model rm local/small-rounded >/dev/null 2>&1 || true
"$smolgym" model add local/small-rounded "$work/small"
"$python" evaluate.py local/small-rounded --to "$work/evaluation.json" # of the rounded weights, which are what ships
