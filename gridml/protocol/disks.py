"""What kind of disk a path is on."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "9p",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "panfs",
        "orangefs",
    }
)
MOUNTS = Path("/proc/mounts")


def network_disk(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the kind of network file system that a path is on, None for a local disk (or where that cannot be
    told)."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    longest, file_system = "", ""
    here = path.resolve()
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if here.is_relative_to(point) and len(point) >= len(longest):
            longest, file_system = point, parts[2]
    is_network = file_system in NETWORK_FILE_SYSTEMS or (
        file_system.startswith("fuse.") and file_system not in ("fuse.ext4", "fuse.overlayfs")
    )
    return file_system if is_network else None
