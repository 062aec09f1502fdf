#!/bin/sh
# Grants or revokes a gridml job's access by sshd (sshd_config in this folder). Run as root.
#
#     jail.sh admit RUN MAILBOX < PUBLIC_KEY     RUN is the run directory; MAILBOX is w7, or w7.1 for w7's next attempt;
#                                                the key is a line `ssh-ed25519 AAAA...`
#     jail.sh close MAILBOX                      unmount a mailbox that the master has removed
#     jail.sh dismiss JOB                        remove a job's key, connections, mounts and account
#
# A job's account has the user id of the run directory's owner, so that master and worker can both read and write the
# files of a mailbox. This is safe: the account has no shell, and its chroot holds only its own mailboxes, mounted one by
# one, and the published chunks, mounted read-only. The account's name is the SSH user in the worker's credential.
set -eu

GROUP=gridml-workers
KEYS=/etc/gridml/keys
JAILS=/srv/gridml

fail() {
    echo "jail.sh: $*" >&2
    exit 2
}

named() { # check the name of a mailbox or a job, which must not be a path
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
    *[!A-Za-z0-9+/=]*) fail "got a key that is not base64" ;;
    AAAAC3NzaC1lZDI1NTE5AAAAI*) ;; # the prefix of all keys of this type
    *) fail "got a key that is not of type ssh-ed25519" ;;
    esac
    owner=$(stat -c %u "$run/mail/$mailbox")
    [ "$owner" -ne 0 ] || fail "the run directory belongs to root; run the master as another user"
    getent group "$GROUP" >/dev/null || groupadd --system "$GROUP"
    if [ "$(id -u "$account" 2>/dev/null)" != "$owner" ]; then # missing, or left by a run of another user
        if getent passwd "$account" >/dev/null; then userdel "$account"; fi
        # '*' matches no password; '!' would lock the account, which sshd then rejects.
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

take() { # remove a folder from a jail; only unmounts, never deletes mounted files
    if mountpoint -q "$1"; then umount -l "$1"; fi
    if [ -d "$1" ]; then rmdir "$1"; fi
}

close() {
    named "$1"
    take "$JAILS/gridml-${1%%.*}/mail/$1"
}

end_connections() { # by process title, as the user id is also the master's; OpenSSH 9.8 renamed sshd to sshd-session
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
        # 8: a process has this user id, such as the master. The account then stays, without a key.
        userdel "$account" 2>/dev/null || [ $? -eq 8 ] || fail "account $account cannot be removed"
    fi
}

case "$#:${1-}" in
3:admit) admit "$2" "$3" ;;
2:close) close "$2" ;;
2:dismiss) dismiss "$2" ;;
*) fail "expected: admit RUN MAILBOX, close MAILBOX, or dismiss JOB" ;;
esac
