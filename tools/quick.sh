#!/usr/bin/env bash
# The checks and the tests that are not long, at once: the tests alone leave a part of two cores idle.
# Arguments go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build
# Most of these tests wait for a disk to store their records: in memory they need not.
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
