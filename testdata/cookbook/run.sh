#!/bin/sh
# The cookbook's recipes against bin/smolgym (or $SMOLGYM_BIN): run.sh [NAME...]
# Prints a table; exit 1 when a recipe fails. SMOLGYM_COOKBOOK_KEEP names a folder to leave everything in.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
"$here/env.sh"
exec "${SMOLGYM_COOKBOOK_VENV:-$HOME/.cache/smolgym/cookbook-venv}/bin/python" "$here/recipes.py" "$@"
