#!/usr/bin/env bash
# The demo on five seeds, one after the other; a table, and exit code 1 if any of them failed.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
for seed in ${SEEDS:-0 1 2 3 4}; do
    data=$(mktemp -d)
    if ! DEMO_DATA=$data SEED=$seed gym/demo.sh >"$data/out.txt" 2>&1; then
        failed=1
        tail -5 "$data/out.txt"
    fi
    python3 - "$data/demo.json" <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
print(f"seed {r['seed']}: before {r['before']:.2f}  warm-up {r['warm']:.2f}  rewards {r['after']:.2f}  shuffled {r['shuffled']:.2f}  {r['seconds']:.0f} s", flush=True)
END
    rm -rf "$data"
done
exit $failed
