#!/bin/bash
# The arm64 level of the CPU kernels, cross-compiled and run under qemu-user: its bits against plain C's and those on record, its values
# against the oracle's, the property test over both levels, and a server that answers from the embedded model.
# SMOLGYM_CASES sets the property test's cases (64: about three minutes on an idle machine).
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v qemu-aarch64 aarch64-linux-gnu-gcc > /dev/null || [ ! -e /usr/aarch64-linux-gnu/include/stdlib.h ]; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
		echo "neon: needs qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; install them, or run this as root on Debian" >&2
		exit 1
	fi
	apt-get update -qq
	apt-get install -qq -y --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross > /dev/null
fi
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2> /dev/null; wait 2> /dev/null; rm -rf "$work"' EXIT

arm() { CC=aarch64-linux-gnu-gcc CGO_ENABLED=1 GOARCH=arm64 GOFLAGS=-trimpath go "$@"; }
arm vet ./kernels/... ./appliance/... ./cmd/...
CGO_ENABLED=0 GOARCH=arm64 GOFLAGS=-trimpath go build ./... # and without a C compiler
arm test -c -o "$work/kernels.test" ./kernels/kerneltest
arm test -c -o "$work/engine.test" ./appliance/engine
arm build -o "$work/smolgym" ./cmd/smolgym

# TestBits holds each level to the best one, which is neon here: plain C's part is what compares the two.
(cd kernels/kerneltest && qemu-aarch64 "$work/kernels.test" -test.v -test.run '^TestAgainstReference$/^neon$|^TestPaged$/^neon$|^TestBits$/^portable$|^TestDigests$' | grep -E '^ *--- |ops, |^(PASS|FAIL)|_test.go|bits.go')
(cd appliance/engine && SMOLGYM_CASES="${SMOLGYM_CASES:-64}" qemu-aarch64 "$work/engine.test" -test.v -test.run '^TestBitProperty$' | grep -E '^ *--- |^(PASS|FAIL)|_test.go')

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
qemu-aarch64 "$work/smolgym" serve --addr "127.0.0.1:$port" --data "$work/data" > "$work/log" 2>&1 &
server=$!
for _ in $(seq 300); do
	python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/healthz', timeout=2)" 2> /dev/null && break
	sleep 0.2
done
grep 'device' "$work/log"
said=$(TINKER_BASE_URL="http://127.0.0.1:$port" TINKER_API_KEY=tml-neon qemu-aarch64 "$work/smolgym" chat rack/small -m 'Reverse: k d a z' --temperature 0)
if [ "$said" != 'z a d k' ]; then
	echo "neon: rack/small said \"$said\", want \"z a d k\"" >&2
	exit 1
fi
echo "neon: equal bits, and rack/small answers"
