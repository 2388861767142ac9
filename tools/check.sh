#!/usr/bin/env bash
# Runs all static checks, also after one has failed; fails if any of them fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=.venv/bin
LOGS=$(mktemp -d)
trap 'rm -rf "$LOGS"' EXIT
names=()

# Starts a check; all run at once, and the longest is started first.
step() {
    local name=$1
    shift
    names+=("$name")
    {
        "$@" >"$LOGS/$name.log" 2>&1
        echo $? >"$LOGS/$name.status"
    } &
}

step types "$BIN/mypy"
step docs "$BIN/python" tools/check_docs.py
step imports "$BIN/lint-imports" --no-logo --no-cache
step layers "$BIN/python" tools/check_layers.py
step format "$BIN/ruff" format --check --quiet .
step lint "$BIN/ruff" check --quiet .
step injob "$BIN/python" tools/check_injob.py
step text "$BIN/python" tools/check_text.py
step length "$BIN/python" tools/check_length.py
wait

failed=()
for name in "${names[@]}"; do
    status=$(cat "$LOGS/$name.status" 2>/dev/null || echo 1)
    if ((status == 0)); then
        printf 'check: %-12s ok    %s\n' "$name" "$(tail -n 1 "$LOGS/$name.log")"
    else
        printf 'check: %-12s FAILED (exit %d)\n' "$name" "$status"
        sed 's/^/    /' "$LOGS/$name.log"
        failed+=("$name")
    fi
done

if ((${#failed[@]})); then
    printf 'check: failed: %s\n' "${failed[*]}"
    exit 1
fi
