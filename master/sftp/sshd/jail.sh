#!/bin/sh
# Let a job of a gridml run in by sshd (sshd_config beside this file), or no longer; as root.
#
#     jail.sh admit RUN MAILBOX < PUBLIC_KEY     RUN is the run directory; MAILBOX is w7, or w7.1 for w7's next attempt;
#                                                the key is a line `ssh-ed25519 AAAA...`
#     jail.sh close MAILBOX                      the master has removed it: its worker is to see that it is gone
#     jail.sh dismiss JOB
#
# A job's account has the number of the run directory's owner, so that master and worker can both read and write what
# lies in a mailbox. It cannot do harm with it: it has no shell, and of the disk it sees its own mailboxes, which are
# mounted into its chroot one by one, and the published chunks, which it cannot write. The account's name is the SSH
# user in the worker's credential.
set -eu

GROUP=gridml-workers
KEYS=/etc/gridml/keys
JAILS=/srv/gridml

fail() {
    echo "jail.sh: $*" >&2
    exit 2
}

named() { # a mailbox or a job, and nothing that could be a path
    case "$1" in
    '' | .* | *[!A-Za-z0-9._-]*) fail "got the name '$1', expected letters, digits, '-', '_' and '.'" ;;
    esac
}

bind() { # FROM TO OPTIONS
    mountpoint -q "$2" && return
    mount --bind "$1" "$2"
    mount -o "remount,bind,nosuid,nodev,noexec$3" "$2"
}

admit() {
    run=$1 mailbox=$2
    named "$mailbox"
    account=gridml-${mailbox%%.*}
    jail=$JAILS/$account
    [ -d "$run/mail/$mailbox" ] || fail "there is no mailbox $run/mail/$mailbox; the master makes it"
    read -r type key _ || true
    [ "$type" = ssh-ed25519 ] || fail "got a key of type '$type', expected ssh-ed25519"
    case "$key" in
    *[!A-Za-z0-9+/=]*) fail "got a key that is no base64" ;;
    AAAAC3NzaC1lZDI1NTE5AAAAI*) ;; # as each of this type begins
    *) fail "got a key that is none of type ssh-ed25519" ;;
    esac
    owner=$(stat -c %u "$run/mail/$mailbox")
    [ "$owner" -ne 0 ] || fail "the run directory is root's; let a master that is not root make it"
    getent group "$GROUP" >/dev/null || groupadd --system "$GROUP"
    if [ "$(id -u "$account" 2>/dev/null)" != "$owner" ]; then # none, or one that a run of somebody else's left
        if getent passwd "$account" >/dev/null; then userdel "$account"; fi
        # '*' is no password's hash, so none fits; '!' would be a locked account, which sshd turns away.
        useradd --non-unique --uid "$owner" --gid "$GROUP" --home-dir / --no-create-home --shell /usr/sbin/nologin \
            --password '*' "$account"
    fi
    install -d -m 755 "$JAILS" "$jail" "$jail/mail" "$jail/mail/$mailbox" "$jail/chunks" "$KEYS"
    bind "$run/mail/$mailbox" "$jail/mail/$mailbox" ""
    bind "$run/chunks" "$jail/chunks" ,ro
    if [ -d "$run/bundle" ]; then
        install -d -m 755 "$jail/bundle"
        bind "$run/bundle" "$jail/bundle" ,ro
    fi
    printf 'restrict ssh-ed25519 %s\n' "$key" >"$KEYS/.$account"
    chmod 644 "$KEYS/.$account"
    mv "$KEYS/.$account" "$KEYS/$account"
    echo "$account"
}

take() { # a folder out of a jail; what was mounted there stays where it is
    if mountpoint -q "$1"; then umount -l "$1"; fi
    if [ -d "$1" ]; then rmdir "$1"; fi
}

close() {
    named "$1"
    take "$JAILS/gridml-${1%%.*}/mail/$1"
}

end_connections() { # by their title, for the number is the master's, too; sshd is sshd-session from OpenSSH 9.8 on
    title="^sshd(-session)?: $1[@ ]"
    for _ in $(seq 50); do
        pkill -f "$title" || return 0
        sleep 0.1
    done
    pkill -KILL -f "$title" || true
}

dismiss() {
    named "$1"
    account=gridml-$1
    jail=$JAILS/$account
    rm -f "$KEYS/$account"
    end_connections "$account"
    for folder in "$jail"/mail/* "$jail/chunks" "$jail/bundle" "$jail/mail" "$jail"; do
        take "$folder"
    done
    if getent passwd "$account" >/dev/null; then
        # 8: a process has the account's number, as the master has. The account then stays, and lets nobody in.
        userdel "$account" 2>/dev/null || [ $? -eq 8 ] || fail "account $account cannot be removed"
    fi
}

case "$#:${1-}" in
3:admit) admit "$2" "$3" ;;
2:close) close "$2" ;;
2:dismiss) dismiss "$2" ;;
*) fail "expected: admit RUN MAILBOX, close MAILBOX, or dismiss JOB" ;;
esac
