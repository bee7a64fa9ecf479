#!/bin/sh
# Makes the environment of the cookbook's recipes, cached outside the repository: tinker-cookbook, the SDK,
# torch and datasets, 1 minute the first time. torch comes without its CUDA libraries, see ../sdk/slim_torch.sh.
# Every package is named with its version, so nothing is resolved (tinker-cookbook asks for a
# tml-renderers that the index doesn't have; only models of that family use it).
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
exec sh "$here/../sdk/slim_torch.sh" "${SMOLGYM_COOKBOOK_VENV:-$HOME/.cache/smolgym/cookbook-venv}" "$here/requirements.txt" \
	'import tinker_cookbook.rl.train, torch; assert torch.ones(2).sum() == 2'
