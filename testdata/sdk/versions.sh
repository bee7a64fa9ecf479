#!/bin/sh
# Runs these tests with other versions of the SDK, and prints how many passed:
#
#     versions.sh [VERSION...]      default: 0.36.0 and the newest on the package index
#
# test_hub.py is left out: its client is not the SDK, and testdata/hub/versions.sh is its own.
# Each version has an environment of its own beside the cached torch environment, made from
# requirements.txt with another SDK. SMOLGYM_BIN names the binary, PYTEST_ARGS narrows the tests.
# The exit status is that of the worst version; the logs stay in the environments' folder.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
cache=${SMOLGYM_CACHE:-$HOME/.cache/smolgym}
python=${PYTHON:-python3}
mkdir -p "$cache"

newest() {
	"$1" -m pip index versions --disable-pip-version-check tinker 2>/dev/null | sed -n '1s/.*(\(.*\)).*/\1/p'
}

# environment VERSION makes its environment, quickly where it is there already.
environment() {
	venv=$cache/sdk-$1
	sed "s/^tinker==.*/tinker==$1/" "$here/requirements.txt" >"$cache/requirements-$1.txt"
	if ! cmp -s "$cache/requirements-$1.txt" "$venv/.requirements" 2>/dev/null; then
		"$python" -m venv --clear "$venv"
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$cache/requirements-$1.txt"
		cp "$cache/requirements-$1.txt" "$venv/.requirements"
	fi
	"$venv/bin/python" -c "import tinker; assert tinker.__version__ == '$1', tinker.__version__"
}

if [ $# -eq 0 ]; then
	latest=$(newest "$python")
	[ -n "$latest" ] || {
		echo "versions.sh: the package index does not answer; name the versions" >&2
		exit 1
	}
	set -- 0.36.0 "$latest"
fi
worst=0
table="| SDK | passed | failed | skipped | expected failures | seconds |
| --- | ---: | ---: | ---: | ---: | ---: |"
for version; do
	environment "$version"
	log=$cache/sdk-$version.log
	began=$(date +%s)
	status=0
	# shellcheck disable=SC2086 # the arguments are words
	"$cache/sdk-$version/bin/python" -m pytest -q "$here" --ignore="$here/test_hub.py" ${PYTEST_ARGS:-} >"$log" 2>&1 || status=$?
	[ "$status" -le "$worst" ] || worst=$status
	count() { grep ' in [0-9.]*s' "$log" | tail -n 1 | sed -n "s/.*[^0-9]*\b\([0-9][0-9]*\) $1.*/\1/p"; }
	failed=$(count failed) errors=$(count error)
	row="| $version | $(count passed) | $((${failed:-0} + ${errors:-0})) | $(count skipped) | $(count xfailed) | $(($(date +%s) - began)) |"
	table="$table
$(echo "$row" | sed 's/|  |/| 0 |/g; s/|  |/| 0 |/g')"
	grep '^FAILED\|^ERROR\|^tinker ' "$log" >&2 || true
done
echo "$table"
exit "$worst"
