#!/bin/sh
# Removes files that the instances of one image must not share, or do not need. The last step of building an image.
set -eu

rm -rf /etc/gridml/instance.json /var/lib/gridml
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
rm -rf /var/log/journal/*
rm -f /var/lib/systemd/random-seed /var/lib/dbus/machine-id
: >/etc/machine-id
cloud-init clean --logs
apt-get -qq clean
rm -rf /var/lib/apt/lists/*
