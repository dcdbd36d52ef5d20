#!/bin/sh
# Makes .venv from the lock file; does nothing when it is up to date. Needs only a Linux with a POSIX shell: what is
# missing it gets, or it stops at once and says what to do. `make` calls it.
set -eu
cd "$(dirname "$0")/.."
export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 PIP_DISABLE_PIP_VERSION_CHECK=1

say() { echo "bootstrap: $*" >&2; }
die() {
    say "can't go on: $1"
    say "  what to do: $2"
    exit 1
}

[ "$(uname -s)" = Linux ] || die "this needs Linux; here is $(uname -s)" \
    "use a Linux machine or VM (Debian 12 is what it is tested on)"

wanted=$(cat locks/dev.txt pyproject.toml deploy/image/build-system.txt hack/bootstrap.sh | sha256sum)
# The folder's own path is part of it: a virtual environment does not survive being moved.
wanted="$wanted $PWD"
[ "$(cat .venv/up-to-date 2>/dev/null)" = "$wanted" ] && exit 0

cache=${SWAPWARDEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/swapwarden}
mkdir -p "$cache" || die "the cache folder $cache can't be made" "point SWAPWARDEN_CACHE at a folder that can be written"
if command -v flock >/dev/null; then
    exec 9>"$cache/bootstrap.lock"
    flock -n 9 || { say "another set-up is at work; waiting for it"; flock 9; }
fi

apt_install() { # PACKAGE WHAT-IT-BRINGS
    command -v apt-get >/dev/null || die "$2 is missing and there is no apt-get to get it with" \
        "install it with your distribution's package manager"
    [ "$(id -u)" = 0 ] || die "$2 is missing, and this is not root" \
        "run once: sudo apt-get update && sudo apt-get install -y --no-install-recommends $1"
    say "apt-get install $1"
    apt-get update -q >"$cache/apt.log" 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$1" >>"$cache/apt.log" 2>&1 \
        || { tail -n 5 "$cache/apt.log" >&2 && die "apt-get could not install $1" "check the network and package sources"; }
}

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
find_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        usable "$python" && return 0
    done
    return 1
}
find_python || apt_install python3 "Python 3.11 or newer"
find_python || die "Python 3.11 or newer is missing; the system's is $(python3 --version 2>&1)" \
    "install one, or use a newer system (Debian 12, Ubuntu 24.04)"

if command -v uv >/dev/null; then
    uv=uv
else
    version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' hack/uv.txt)
    uv=$cache/uv-$version/uv
    if ! [ -x "$uv" ]; then
        "$python" -c 'import venv, ensurepip' 2>/dev/null || apt_install python3-venv "Python's venv module"
        "$python" -c 'import venv, ensurepip' 2>/dev/null || python=/usr/bin/python3 # the one that apt-get completes
        say "getting uv $version"
        rm -rf "$cache"/.uv-* # of a set-up that was killed; this one has the lock
        new=$(mktemp -d "$cache/.uv-XXXXXX")
        trap 'rm -rf "$new"' EXIT
        trap 'exit 130' INT TERM HUP # a POSIX shell runs no EXIT trap on a signal
        "$python" -m venv "$new/venv" || die "no virtual environment can be made with $python" "install python3-venv"
        "$new/venv/bin/pip" install -q --retries 1 --require-hashes -r hack/uv.txt \
            || die "uv could not be fetched from the Python package index" "check the network, or install uv and put it on PATH"
        mkdir -p "$cache/uv-$version"
        mv "$new/venv/bin/uv" "$uv"
    fi
fi

say "making .venv from locks/dev.txt"
.venv/bin/python -c '' 2>/dev/null || "$uv" venv -q --clear --python "$python" .venv
failed() { die "the packages of locks/dev.txt could not be installed" "check the network and read uv's message above"; }
"$uv" pip sync -q --python .venv/bin/python --require-hashes locks/dev.txt || failed
"$uv" pip install -q --python .venv/bin/python --no-deps --build-constraints deploy/image/build-system.txt --editable . || failed
echo "$wanted" >.venv/up-to-date
