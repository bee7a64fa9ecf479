#!/bin/sh
# Makes .venv in the repository: the unmodified Tinker SDK and what its tests need (no torch).
# Quick when it is already there; made anew when requirements.txt changes.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../.venv
python=${PYTHON:-python3}
if cmp -s "$here/requirements.txt" "$venv/.requirements" 2>/dev/null; then
	exit 0
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	echo "env.sh: the SDK needs python 3.11 or newer; set PYTHON" >&2
	exit 1
}
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
"$venv/bin/python" -c 'import tinker' # a broken install fails here, not in a test
cp "$here/requirements.txt" "$venv/.requirements"
