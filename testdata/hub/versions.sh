#!/bin/sh
# The client's checks with each version of huggingface_hub that is promised to work, in cached environments outside of
# the repository (60 MB each). Needs make build and testdata/sdk/env.sh. Arguments: versions, else all of them.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH= cd -- "$here/../.." && pwd)
cache=${SMOLGYM_HUB_VENVS:-$HOME/.cache/smolgym/hub}
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- 0.34.4+hf_xet==1.5.1 0.36.2+hf_xet==1.5.1 1.0.1+hf_xet==1.5.1 1.20.0+hf_xet==1.6.0 1.33.0+hf_xet==1.8.0 newest
failed=
for v in "$@"; do
	venv=$cache/$v
	if [ ! -e "$venv/ready" ]; then
		"$python" -m venv --clear "$venv"
		want="huggingface_hub==${v%%+*}"
		[ "$v" != newest ] || want="huggingface_hub"
		extra= # 1.0 needs click and relies on another package to bring it
		case $v in *+*) extra=$(echo "${v#*+}" | tr + ' ') ;; esac
		# shellcheck disable=SC2086 # words on purpose
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$want" $extra click
		touch "$venv/ready"
	fi
	"$venv/bin/python" -c 'import huggingface_hub, hf_xet, importlib.metadata as m; print("huggingface_hub", huggingface_hub.__version__, "hf_xet", m.version("hf_xet"))'
	SMOLGYM_HUB_PYTHON=$venv/bin/python "$root/.venv/bin/python" -m pytest -q -p no:cacheprovider "$root/testdata/sdk/test_hub.py" -k test_client || failed="$failed $v"
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
