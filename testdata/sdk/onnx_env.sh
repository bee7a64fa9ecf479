#!/bin/sh
# Makes the optional environment with the ONNX checker and ONNX Runtime, cached outside the repository. About 60 MB of
# downloads; quick when it is already there; made anew when onnx-requirements.txt changes.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=${SMOLGYM_ONNX_VENV:-$HOME/.cache/smolgym/onnx-venv}
if cmp -s "$here/onnx-requirements.txt" "$venv/.requirements" 2>/dev/null; then
	exit 0
fi
mkdir -p "$(dirname -- "$venv")"
"${PYTHON:-python3}" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/onnx-requirements.txt"
"$venv/bin/python" -c 'import onnx, onnxruntime, safetensors'
cp "$here/onnx-requirements.txt" "$venv/.requirements"
