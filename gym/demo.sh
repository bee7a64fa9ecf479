#!/usr/bin/env bash
# What `make demo` runs: builds, makes the Python environment, serves on a free port, runs demo.py, leaves no process.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {
    printf 'make demo needs %s, which is not here.\n  %s\n' "$1" "$2" >&2
    exit 1
}
PYTHON=${PYTHON:-python3}
command -v "${GO:-go}" >/dev/null || missing "Go 1.26 or newer" "Get it from https://go.dev/dl and put it in PATH."
command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null ||
    missing "a C compiler" "On Debian or Ubuntu: apt install gcc libc6-dev. Elsewhere: gcc or clang."
command -v "$PYTHON" >/dev/null || missing "Python 3.11 or newer" "Install it, or name one: make demo PYTHON=python3.12"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    missing "Python 3.11 or newer ($("$PYTHON" --version 2>&1) is older)" "Name another: make demo PYTHON=python3.12"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
    missing "Python's venv module" "On Debian or Ubuntu: apt install python3-venv."

echo "building the binary (the first time takes a minute or two)"
make --no-print-directory -s build
[ -e .venv/ready ] || echo "making a Python environment in .venv with the Tinker SDK (the first time takes a minute)"
make --no-print-directory -s .venv/ready PYTHON="$PYTHON"

data=${DEMO_DATA:-demo-data}
mkdir -p "$data"
log=$data/serve.log
bin/smolgym serve --addr 127.0.0.1:0 --data "$data" >"$log" 2>&1 &
server=$!
client=
trap 'kill $client $server 2>/dev/null || true; wait $server 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
url=
for _ in $(seq 100); do
    url=$(sed -n 's/^.* on \(http:[^ ]*\)$/\1/p' "$log")
    [ -n "$url" ] && break
    kill -0 $server 2>/dev/null || break
    sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start:" >&2; cat "$log" >&2; exit 1; }
grep device "$log"
echo "  server  $url"
echo

code=0
TINKER_BASE_URL=$url TINKER_API_KEY=tml-local PYTHONUNBUFFERED=1 \
    .venv/bin/python gym/demo.py --seed "${SEED:-0}" --picture "$data/demo.svg" --json "$data/demo.json" "$@" &
client=$! # in the background, so that an interrupt ends both at once
wait $client || code=$?
[ $code -eq 0 ] || { echo "the demo failed; the server's log is $log" >&2; exit $code; }

path=$(.venv/bin/python -c 'import json, sys; print(json.load(open(sys.argv[1]))["checkpoint"])' "$data/demo.json")
cat <<END

Go on with it:
  bin/smolgym serve --data $data
  bin/smolgym chat $path -m "Backwards in capitals: d k a z" --temperature 0
  bin/smolgym checkpoint export $path --to ./learned --form merged
END
