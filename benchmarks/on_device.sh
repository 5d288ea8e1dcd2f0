#!/usr/bin/env bash
# Run rubin-tune on a lent machine that has torch and triton but no way to install: the wheels it lacks
# lie in .whl/ (pip download --no-deps, see CONTRIBUTING.md). Usage: bash benchmarks/on_device.sh COMMAND...
set -euo pipefail
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH="/tmp/site:src:." PYTHONUNBUFFERED=1
export RUBIN_TUNE_DB=${RUBIN_TUNE_DB:-/tmp/rubin-tune.sqlite} XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/cache}
# torch keeps compiled elementwise kernels here and warns where it cannot; our tests take warnings as errors
mkdir -p "$XDG_CACHE_HOME/torch/kernels"
exec "$@"
