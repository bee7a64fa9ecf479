#!/bin/sh
# slim_torch.sh VENV REQUIREMENTS CHECK: makes a virtual environment with torch and without its CUDA libraries; CHECK is a line
# of Python that must hold in it. Quick when it is already there; made anew when REQUIREMENTS changes.
#
# The torch wheel of the package index is linked against thirteen CUDA libraries, 2 GB more that a CPU
# never calls. Here it is installed without them: the CUDA runtime (2 MB) is real, since its
# functions run when the library is loaded, and cuda_stubs.py makes empty ones in place of the rest.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=$1 requirements=$2 check=$3
if cmp -s "$requirements" "$venv/.requirements" 2>/dev/null; then
	exit 0
fi
mkdir -p "$(dirname -- "$venv")"
"${PYTHON:-python3}" -m venv --clear "$venv"
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip --no-deps -r "$requirements"
if [ "$(uname -s)/$(uname -m)" = Linux/x86_64 ]; then
	$pip --no-deps 'nvidia-cuda-runtime==13.2.86'
	"$venv/bin/python" "$here/cuda_stubs.py"
fi
"$venv/bin/python" -c "$check"
cp "$requirements" "$venv/.requirements"
