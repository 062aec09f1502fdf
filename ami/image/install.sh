#!/bin/sh
# Installs gridml into a Debian root file system for an image. Run as root, in a chroot or on the machine whose disk
# becomes the image. Its inputs are in the same folder:
#   gridml-*.whl       the boot daemon, and the packages that it imports
#   packages.txt       further packages for pip to install
#   constraints.txt    versions (optional)
#   pip.conf           the package index (optional); PIP_* variables apply as well
# Idempotent. Ends with clean.sh, which removes files that instances must not share, unless it is called as
# `install.sh --unclean`; then the caller runs clean.sh later.
set -eu

unclean=${1-}
here=$(cd "$(dirname "$0")" && pwd)
home=/opt/gridml
say() { echo "gridml image: $*"; }

[ "$(id -u)" = 0 ] || { say "run this as root"; exit 1; }
set -- "$here"/gridml-*.whl
if [ $# != 1 ] || [ ! -f "$1" ]; then
    say "expected one gridml-*.whl beside $0, got: $*"
    exit 1
fi
wheel=$1

missing=
for package in ca-certificates cloud-init python3-venv systemd-sysv; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
if [ -n "$missing" ]; then
    say "apt-get install$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086  # one word a package
    apt-get -qq install -y --no-install-recommends $missing
fi

id gridml >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir /var/lib/gridml --shell /usr/sbin/nologin gridml
install -d -m 0755 "$home"
install -d -m 0750 -o root -g gridml /etc/gridml

say "packages into $home/venv"
[ -f "$here/pip.conf" ] && export PIP_CONFIG_FILE="$here/pip.conf"
[ -f "$here/constraints.txt" ] && export PIP_CONSTRAINT="$here/constraints.txt"
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install --quiet -r "$here/packages.txt"
# --no-deps: not the submit host's dependencies. --force-reinstall: even if the version is the same.
"$home/venv/bin/python" -m pip install --quiet --no-deps --force-reinstall "$wheel"
"$home/venv/bin/python" -c 'import ami.daemon, numpy, paramiko'

install -m 0644 "$here/gridml-worker.service" /etc/systemd/system/gridml-worker.service
install -d /etc/cloud/cloud.cfg.d
install -m 0644 "$here/90_gridml.cfg" /etc/cloud/cloud.cfg.d/90_gridml.cfg
systemctl --quiet enable gridml-worker.service

if [ "$unclean" != --unclean ]; then
    say "removing what instances must not share"
    sh "$here/clean.sh"
fi
say "done"
