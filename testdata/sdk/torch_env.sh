#!/bin/sh
# Makes the optional torch environment, cached outside the repository: the versions the goldens
# were made with, and the SDK, for forward_backward_custom. About 540 MB of downloads.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
exec sh "$here/slim_torch.sh" "${SMOLGYM_TORCH_VENV:-$HOME/.cache/smolgym/torch-venv}" "$here/torch-requirements.txt" \
	'import tinker, peft, torch; assert torch.ones(2).sum() == 2'
