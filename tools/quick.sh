#!/usr/bin/env bash
# Runs the checks and the short tests at the same time: the tests alone do not use two cores fully.
# Arguments go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build
# Most of these tests wait for the disk to store their records; in memory they do not.
free_kib=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
if [[ -w /dev/shm && ${free_kib:-0} -gt 2000000 ]]; then
    export TEST_FOLDER=/dev/shm
fi
tools/check.sh >build/check.log 2>&1 &
checks=$!
.venv/bin/python -m pytest tests/unit tests/contract -q \
    -m "not slow and not long and not ray and not storage and not conformance" "$@"
tests=$?
wait "$checks"
code=$?
cat build/check.log
exit $((tests ? tests : code))
