"""A local EC2: instances boot, are notified, interrupted, crashed and ended as on the real one, and nothing remains."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from pools.ec2 import control, root

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SCENARIO = Path(__file__).parent / "scenario.py"
LIMIT_S = 240
ROLES = ("taken", "crashed", "switched_off", "ended")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ec2")


@pytest.fixture(scope="module")
def facts(bootable: root.Root, folder: Path) -> dict[str, Any]:
    """Return the results of the scenario."""
    command = control.command(bootable, folder, [sys.executable, str(SCENARIO)])
    done = subprocess.run(command, env=control.environment(), capture_output=True, text=True, timeout=LIMIT_S)
    consoles = "".join(path.read_text(errors="replace")[-3000:] for path in folder.glob("consoles/*"))
    assert done.returncode == 0, f"{done.stderr}\n{consoles}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def reported(facts: Mapping[str, Any], role: str, what: str) -> list[dict[str, Any]]:
    return [each for each in facts["reports"] if each["id"] == facts["roles"][role] and each["what"] == what]


def happened(facts: Mapping[str, Any], role: str, what: str) -> float:
    """Return the time of an event in seconds since 1970; check that it happened once."""
    (at_s,) = [each["at_s"] for each in facts["events"] if each["id"] == facts["roles"][role] and each["what"] == what]
    return float(at_s)


@pytest.mark.parametrize("role", ROLES)
def test_an_instance_boots_and_cloud_init_does_what_its_user_data_say(facts: dict[str, Any], role: str) -> None:
    (booted,) = reported(facts, role, "booted")
    assert booted["file"] == "by cloud-init"
    assert booted["at_s"] - happened(facts, role, "is launched") < LIMIT_S


def test_the_metadata_service_requires_a_token(facts: dict[str, Any]) -> None:
    (booted,) = reported(facts, "taken", "booted")
    assert (booted["without_token"], booted["foreign_token"], booted["notice"]) == (401, 401, 404)


def test_each_instance_has_an_identity_document_that_the_cloud_signed(facts: dict[str, Any]) -> None:
    key = x509.load_pem_x509_certificate(facts["certificate"].encode()).public_key()
    assert isinstance(key, RSAPublicKey)
    documents = [reported(facts, role, "booted")[0] for role in ROLES]
    for booted in documents:
        signature = base64.b64decode(booted["signature"])
        key.verify(signature, booted["document"].encode(), PKCS1v15(), SHA256())
        assert json.loads(booted["document"])["instanceId"] == booted["id"]


def test_an_interrupted_instance_gets_a_notice_and_is_taken_at_the_announced_time(facts: dict[str, Any]) -> None:
    said = json.loads(reported(facts, "taken", "notice")[0]["said"])
    assert said["action"] == "terminate"
    told_s, taken_s = (
        happened(facts, "taken", "gets a notice of 4 s"),
        happened(facts, "taken", "is taken"),
    )
    assert 4 <= taken_s - told_s < 30
    assert reported(facts, "taken", "alive")[-1]["at_s"] - told_s > 1, "it lives on after its notice"
    assert facts["described"][facts["roles"]["taken"]] == ["terminated", "Server.SpotInstanceTermination"]


def test_a_rebalance_recommendation_is_received(facts: dict[str, Any]) -> None:
    assert "noticeTime" in reported(facts, "ended", "rebalance")[0]["said"]


def test_a_crashed_instance_is_gone_at_once_without_a_notice(facts: dict[str, Any]) -> None:
    began_s, ended_s = facts["crash"]
    assert ended_s - began_s < 5
    assert not reported(facts, "crashed", "notice")
    last_s = max(each["at_s"] for each in facts["reports"] if each["id"] == facts["roles"]["crashed"])
    assert last_s < ended_s + 1, "what it sent before may be read a moment later"
    assert max(each["at_s"] for each in facts["reports"]) > ended_s + 1
    assert facts["described"][facts["roles"]["crashed"]] == ["terminated", "Server.SpotInstanceTermination"]


def test_a_power_off_from_inside_terminates_the_instance(facts: dict[str, Any]) -> None:
    happened(facts, "switched_off", "switched itself off")
    assert facts["described"][facts["roles"]["switched_off"]] == ["terminated", "Client.InstanceInitiatedShutdown"]


def test_a_terminated_instance_goes_away(facts: dict[str, Any]) -> None:
    assert facts["described"][facts["roles"]["ended"]] == ["terminated", "Client.UserInitiatedShutdown"]


def test_a_mute_instance_runs_without_a_network(facts: dict[str, Any]) -> None:
    happened(facts, "mute", "boots with its network cut")
    assert not reported(facts, "mute", "booted")
    assert facts["described"][facts["roles"]["mute"]][0] == "running"


def test_capacity_is_lacking_as_often_as_was_said_and_a_token_counts_once(facts: dict[str, Any]) -> None:
    assert facts["refused"] == [["InsufficientInstanceCapacity"], []]
    assert facts["again"] == [facts["roles"][role] for role in ROLES]


def test_prices_move(facts: dict[str, Any]) -> None:
    assert facts["prices"]
    assert all(0 < price < 1 for price in facts["prices"])


def test_what_has_ended_leaves_neither_namespace_nor_mount(facts: dict[str, Any]) -> None:
    assert facts["namespaces"] == [facts["roles"]["mute"][:15]]
    assert all(facts["roles"]["mute"] in mount for mount in facts["mounts"])


def test_nothing_is_left_on_the_machine(facts: dict[str, Any], folder: Path) -> None:
    assert "/run/instances" not in Path("/proc/mounts").read_text()
    assert not any(id[:15] in os.listdir("/run/netns") for id in facts["roles"].values() if Path("/run/netns").is_dir())
    left = [p.info for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or ())]
    assert not left
    groups = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    assert not any(id in name for id in facts["roles"].values() for name in groups)


def test_a_cloud_whose_command_is_killed_dies_as_a_whole(bootable: root.Root, folder: Path) -> None:
    """If its first process is killed without cleanup, the namespaces end, with all their content."""
    place = folder / "killed"
    command = control.command(
        bootable, place, [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    )
    with subprocess.Popen(command, env=control.environment(), stdout=subprocess.PIPE, text=True) as cloud:
        assert cloud.stdout is not None
        assert cloud.stdout.readline() == "up\n"
        theirs = psutil.Process(cloud.pid).children(recursive=True)
        assert len(theirs) >= 2
        cloud.kill()
        _, alive = psutil.wait_procs(theirs, timeout=30)
    assert not alive


def test_the_image_holds_no_secret_and_nothing_of_the_machine_that_made_it(bootable: root.Root) -> None:
    image, debian = bootable.layers  # what the image's own scripts made, over the Debian that they were run in
    names = {path.relative_to(image).as_posix() for path in image.rglob("*") if path.is_file() and path.stat().st_size}
    assert "etc/systemd/system/gridml-worker.service" in names
    secret = ("ssh_host_", "authorized_keys", "gridml/instance.json", "random-seed", "machine-id", "pip.conf", ".netrc")
    assert not [name for name in names if any(part in name for part in secret)]
    assert not [
        name for name in names if not name.endswith(".py") and b"PRIVATE KEY-----" in (image / name).read_bytes()
    ]
    keys = [path.relative_to(debian) for path in debian.glob("etc/ssh/ssh_host_*_key")]
    assert keys and all((image / key).is_char_device() for key in keys)  # so an overlay says that they are gone
