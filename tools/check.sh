#!/usr/bin/env bash
# All checks that need no running part. Every one is run; the exit status says whether all passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=.venv/bin
failed=()

step() {
    local name=$1 log status
    shift
    log=$(mktemp)
    "$@" >"$log" 2>&1
    status=$?
    if ((status == 0)); then
        printf 'check: %-12s ok    %s\n' "$name" "$(tail -n 1 "$log")"
    else
        printf 'check: %-12s FAILED (exit %d)\n' "$name" "$status"
        sed 's/^/    /' "$log"
        failed+=("$name")
    fi
    rm -f "$log"
}

step format "$BIN/ruff" format --check --quiet .
step lint "$BIN/ruff" check --quiet .
step types "$BIN/mypy"
step layers "$BIN/lint-imports" --no-logo --no-cache
step floors "$BIN/python" tools/check_layers.py
step injob "$BIN/python" tools/check_injob.py
step text "$BIN/python" tools/check_text.py
step docs "$BIN/python" tools/check_docs.py
step length "$BIN/python" tools/check_length.py

if ((${#failed[@]})); then
    printf 'check: failed: %s\n' "${failed[*]}"
    exit 1
fi
