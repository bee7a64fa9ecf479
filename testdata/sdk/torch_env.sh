#!/bin/sh
# Makes the optional torch environment, cached outside the repository: the versions the goldens
# were made with, and the SDK, for forward_backward_custom. About 540 MB of downloads.
#
# The torch wheel of the package index is linked against thirteen CUDA libraries, 2 GB more that a CPU
# never calls. Here it is installed without them: the CUDA runtime (2 MB) is real, since its
# functions run when the library is loaded, and cuda_stubs.py makes empty ones in place of the rest.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=${SMOLGYM_TORCH_VENV:-$HOME/.cache/smolgym/torch-venv}
python=${PYTHON:-python3}
if cmp -s "$here/torch-requirements.txt" "$venv/.requirements" 2>/dev/null; then
	exit 0
fi
mkdir -p "$(dirname -- "$venv")"
"$python" -m venv --clear "$venv"
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip --no-deps -r "$here/torch-requirements.txt"
if [ "$(uname -s)/$(uname -m)" = Linux/x86_64 ]; then
	$pip --no-deps 'nvidia-cuda-runtime==13.2.86'
	"$venv/bin/python" "$here/cuda_stubs.py"
fi
"$venv/bin/python" -c 'import tinker, peft, torch; assert torch.ones(2).sum() == 2'
cp "$here/torch-requirements.txt" "$venv/.requirements"
