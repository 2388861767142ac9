#!/usr/bin/env bash
# Writes requirements/dev.txt (every package with its exact version) from requirements/dev.in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
UV_CUSTOM_COMPILE_COMMAND="tools/lock.sh" .venv/bin/uv pip compile \
    --quiet --no-annotate --no-emit-package rayjobs --python-version 3.11 "$@" \
    requirements/dev.in --output-file requirements/dev.txt
