"""The scenario of the local EC2's test: launches instances, acts as the provider, prints the results (JSON).

Instances report their observations to `REPORTS`, and get their orders as the answer.
"""

from __future__ import annotations

import base64
import http.server
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import boto3

from pools.ec2.control import CERTIFICATE_VARIABLE, IMAGE_VARIABLE, VARIABLE, Control

REPORTS = ("172.31.0.1", 8000)
LIMIT_S = 60.0
NOTICE_S = 4.0
# Runs in an instance: reports its identity and the metadata service's answers, then obeys its notice and its orders.
GUEST = """
import json, subprocess, time, urllib.error, urllib.request
IMDS = "http://169.254.169.254/latest/"
def ask(path, method="GET", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(IMDS + path, method=method, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=5).read().decode()
    except urllib.error.HTTPError as error:
        return error.code
token = ask("api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="600")
def get(path):
    return ask(path, X_aws_ec2_metadata_token=token)
def report(**values):
    body = json.dumps({"id": identity, **values}).encode()
    return urllib.request.urlopen("http://%s:%d/", body, timeout=5).read().decode()
identity = get("meta-data/instance-id")
order = report(
    what="booted", file=open("/etc/written").read(), without_token=ask("meta-data/instance-id"),
    foreign_token=ask("meta-data/instance-id", X_aws_ec2_metadata_token="x" * 40),
    document=get("dynamic/instance-identity/document"), signature=get("dynamic/instance-identity/signature"),
    notice=get("meta-data/spot/instance-action"),
)
while True:
    for what, path in (("notice", "spot/instance-action"), ("rebalance", "events/recommendations/rebalance")):
        said = get("meta-data/" + path)
        if isinstance(said, str):
            order = report(what=what, said=said)
    if order == "switch off":
        subprocess.run(["systemctl", "poweroff"])
    time.sleep(0.2)
    order = report(what="alive")
""".replace("%s:%d", f"{REPORTS[0]}:{REPORTS[1]}")
USER_DATA = "#cloud-config\n" + json.dumps(
    {
        "write_files": [
            {"path": "/etc/written", "content": "by cloud-init"},
            {"path": "/opt/guest.py", "content": GUEST},
        ],
        "runcmd": [["systemd-run", "--no-block", "/usr/bin/python3", "/opt/guest.py"]],
    }
)


class Reports:
    """Collect the reports of instances, with their times in seconds since 1970; `orders` are the answers."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.orders: dict[str, str] = {}
        reports = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reports.reports.append({"at_s": time.time(), **values})
                body = reports.orders.get(values["id"], "go on").encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        threading.Thread(target=http.server.ThreadingHTTPServer(REPORTS, Handler).serve_forever, daemon=True).start()

    def of(self, id: str, what: str) -> list[dict[str, Any]]:
        return [each for each in list(self.reports) if each["id"] == id and each["what"] == what]


def wait(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {LIMIT_S} s")
        time.sleep(0.05)


def main() -> None:
    provider, ec2, reports = Control(os.environ[VARIABLE]), boto3.client("ec2"), Reports()
    template = ec2.create_launch_template(
        LaunchTemplateName="test",
        LaunchTemplateData={
            "ImageId": os.environ[IMAGE_VARIABLE],
            "UserData": base64.b64encode(USER_DATA.encode()).decode(),
            "InstanceInitiatedShutdownBehavior": "terminate",
        },
    )["LaunchTemplate"]["LaunchTemplateId"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]

    def fleet(size: int, token: str) -> Any:
        return ec2.create_fleet(
            Type="instant",
            ClientToken=token,
            TargetCapacitySpecification={"TotalTargetCapacity": size, "DefaultTargetCapacityType": "spot"},
            SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "$Latest"},
                    "Overrides": [{"InstanceType": "c7i.xlarge", "SubnetId": subnet}],
                }
            ],
        )

    def ids(answer: Any) -> list[str]:
        return [id for each in answer["Instances"] for id in each["InstanceIds"]]

    def described() -> dict[str, Any]:
        found = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
        return {i["InstanceId"]: [i["State"]["Name"], i.get("StateReason", {}).get("Code", "")] for i in found}

    provider.refuse(1)
    refused = fleet(4, "refused")
    launched = ids(fleet(4, "once"))
    again = ids(fleet(4, "once"))
    wait(lambda: all(reports.of(id, "booted") for id in launched), "four instances that boot")
    taken, crashed, switched_off, ended = launched
    provider.mute(1)
    (mute,) = ids(fleet(1, "mute"))
    provider.rebalance(ended)
    provider.interrupt(taken, NOTICE_S)
    wait(lambda: reports.of(taken, "notice"), "a notice")
    wait(lambda: reports.of(ended, "rebalance"), "a recommendation")
    reports.orders[switched_off] = "switch off"
    crashed_s = time.time()
    provider.crash(crashed)
    gone_s = time.time()
    ec2.terminate_instances(InstanceIds=[ended])
    over = {"is taken", "is gone", "switched itself off", "is terminated as asked"}
    gone = (taken, crashed, switched_off, ended)
    provider.wait(lambda events: {e.id for e in events if e.what in over} >= set(gone), LIMIT_S)
    prices = ec2.describe_spot_price_history(InstanceTypes=["c7i.xlarge"], ProductDescriptions=["Linux/UNIX"])
    json.dump(
        {
            "roles": dict(zip(("taken", "crashed", "switched_off", "ended"), launched, strict=True)) | {"mute": mute},
            "again": again,
            "refused": [[each["ErrorCode"] for each in refused["Errors"]], ids(refused)],
            "reports": reports.reports,
            "described": described(),
            "events": [asdict(event) for event in provider.events()],
            "crash": [crashed_s, gone_s],
            "prices": [float(each["SpotPrice"]) for each in prices["SpotPriceHistory"]],
            "certificate": Path(os.environ[CERTIFICATE_VARIABLE]).read_text(),
            "namespaces": sorted(os.listdir("/run/netns")),
            "mounts": [
                line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if "/run/instances/" in line
            ],
        },
        sys.stdout,
        default=str,
    )


if __name__ == "__main__":
    main()
