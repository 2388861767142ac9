#!/usr/bin/env bash
# Creates .venv/ with everything the tests need, and installs the system packages of tools/apt.txt.
# It can be run repeatedly: a step whose inputs have not changed is skipped.
#   --without-horovod   leaves out Horovod, which takes minutes to compile: enough for the demo
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=$ROOT/.venv
STAMP=$VENV/.rayjobs-setup # the Python packages are installed
HOROVOD_STAMP=$VENV/.rayjobs-setup-horovod
horovod=true
[[ ${1:-} == --without-horovod ]] && horovod=false

say() { printf 'setup: %s\n' "$*" >&2; }

# Two runs (a test run and a demo, for example) must not install into the folder at the same time.
if command -v flock >/dev/null; then
    mkdir -p "$VENV"
    exec 9>"$VENV/.rayjobs-setup.lock"
    flock 9
fi

# --- system packages ------------------------------------------------------------------------------

missing=()
if command -v dpkg-query >/dev/null; then
    while read -r package _; do
        [[ -z $package || $package == \#* ]] && continue
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [[ $state == installed ]] || missing+=("$package")
    done <tools/apt.txt
fi
if ((${#missing[@]})); then
    as_root=()
    may_install=false
    if ((EUID == 0)); then
        may_install=true
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        may_install=true
        as_root=(sudo -n)
    fi
    installed=false
    if $may_install && command -v apt-get >/dev/null; then
        say "installing system packages: ${missing[*]}"
        log=$(mktemp)
        for _ in 1 2 3; do
            if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q >"$log" 2>&1 &&
                "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                    apt-get install -q -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
                installed=true
                break
            fi
            sleep 2
        done
        $installed || tail -n 5 "$log" >&2
        rm -f "$log"
    fi
    $installed || say "these system packages are missing; tests that need them will say so: ${missing[*]}" \
        "(install them with: sudo apt-get install ${missing[*]})"
fi

# --- virtual environment --------------------------------------------------------------------------

python=""
for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13; do
    if command -v "$candidate" >/dev/null &&
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [[ -z $python ]]; then
    say "no Python 3.11 or newer was found. Install one, or name it: PYTHON=/path/to/python3.11 make setup"
    exit 1
fi

# The path of the checkout is part of the key: the editable install and the scripts contain it.
key=$({
    cat pyproject.toml requirements/dev.txt tools/setup.sh rayjobs/environments/horovod/*.py
    printf '%s\n' "$ROOT"
    "$python" -VV
} | sha256sum | cut -d' ' -f1)

# Compile modules now: if nothing stores them later (PYTHONDONTWRITEBYTECODE, a read-only tree),
# every command would spend half a second on compiling them. A failure here has no other effect.
compiled() {
    "$VENV/bin/python" -m compileall -q "$@" >/dev/null || true
}

has() { [[ -f $1 && $(<"$1") == "$key" ]]; }

# This takes some minutes, once for each version of PyTorch: the wheel is stored in the user's cache
# folder. If it cannot be built (no compiler, no network), the tests of Horovod are skipped.
build_horovod() {
    $horovod && ! has "$HOROVOD_STAMP" || return 0
    rm -f "$HOROVOD_STAMP"
    if nice "$VENV/bin/rayjobs" horovod install --if-needed --cpu; then
        printf '%s\n' "$key" >"$HOROVOD_STAMP"
    else
        # No stamp: the next run tries again.
        say "Horovod cannot be built here (see above): its tests are skipped. Try again:" \
            ".venv/bin/rayjobs horovod install"
    fi
}

if [[ -x $VENV/bin/python && -x $VENV/bin/rayjobs ]] && has "$STAMP"; then
    compiled rayjobs tuning datastore
    build_horovod
    exit 0
fi
rm -f "$STAMP" "$HOROVOD_STAMP"

if ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "creating the virtual environment .venv with $("$python" -V)"
    if ! "$python" -m venv "$VENV"; then
        say "python3 -m venv failed. On Debian and Ubuntu, install the package python3-venv."
        exit 1
    fi
fi

# Tries a command three times: in a download of gigabytes, a connection may be lost.
again() {
    local try
    for try in 1 2 3; do
        "$@" && return 0
        ((try < 3)) && say "that failed; trying again" && sleep 3
    done
    return 1
}

if ! "$VENV/bin/uv" --version >/dev/null 2>&1; then
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv ||
        say "uv cannot be installed; using pip, which takes longer"
fi
say "installing the Python packages of requirements/dev.txt (some gigabytes when nothing is cached)"
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
if "$VENV/bin/uv" --version >/dev/null 2>&1 &&
    again "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" \
        -r requirements/dev.txt -e .; then
    :
else
    again "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r requirements/dev.txt -e .
fi

packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
commands=()
for name in annotated_types click pathspec platformdirs psutil pydantic pydantic_core rich rich_click \
    sqlalchemy typing_extensions.py typing_inspection yaml zstandard; do
    [[ -e $packages/$name ]] && commands+=("$packages/$name")
done
compiled rayjobs tuning datastore "${commands[@]}"

printf '%s\n' "$key" >"$STAMP"
build_horovod
say "ready: .venv/bin/rayjobs"
