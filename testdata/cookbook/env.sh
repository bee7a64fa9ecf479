#!/bin/sh
# Makes the environment of the cookbook's recipes, cached outside the repository: tinker-cookbook, the SDK,
# torch and datasets, 1 minute the first time. torch comes without its CUDA libraries, as in ../sdk/torch_env.sh.
# Every package is named with its version, so nothing is resolved (tinker-cookbook asks for a
# tml-renderers that the index doesn't have; only models of that family use it).
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=${SMOLGYM_COOKBOOK_VENV:-$HOME/.cache/smolgym/cookbook-venv}
python=${PYTHON:-python3}
if cmp -s "$here/requirements.txt" "$venv/.requirements" 2>/dev/null; then
	exit 0
fi
mkdir -p "$(dirname -- "$venv")"
"$python" -m venv --clear "$venv"
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip --no-deps -r "$here/requirements.txt"
if [ "$(uname -s)/$(uname -m)" = Linux/x86_64 ]; then
	$pip --no-deps 'nvidia-cuda-runtime==13.2.86'
	"$venv/bin/python" "$here/../sdk/cuda_stubs.py"
fi
"$venv/bin/python" -c 'import tinker_cookbook.rl.train, torch; assert torch.ones(2).sum() == 2'
cp "$here/requirements.txt" "$venv/.requirements"
