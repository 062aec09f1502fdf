"""The plug-in of the EC2 back end: `gridml launch`, and `gridml ec2` for maintenance between runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from master.backends.ec2.options import Ec2Options
from master.ports.plugin import BackendPlugin, Command, Upkeep
from master.state.jobs import Backend
from master.store.rundir import RunDirectory
from master.store.settings import Settings

if TYPE_CHECKING:
    from master.backends.ec2.cloud import Cloud


class Ec2Plugin(BackendPlugin):
    """Workers on Amazon's spot instances. boto3 is imported when AWS is first asked."""

    name = "ec2"
    options = Ec2Options
    command = Command(
        verb="launch",
        help="Train a program on spot instances of Amazon EC2.\n\nThe instances connect to this machine, so it must be "
        "where they can reach it. When the run ends, all that it made is removed.",
        example="gridml launch examples/mnist.py --instances 4 --region eu-central-1",
        workers=4,
        workers_help="Number of concurrent instances, with a worker on each.",
    )
    dry_run = "Print the instances that would be launched, but launch nothing."

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        from master.backends.ec2.backend import Ec2, Ec2Environment

        return Ec2(settings, directory, Ec2Environment(self._cloud(settings)))

    def nearby(self) -> bool:
        return False

    def check(self, settings: Settings) -> None:
        from master.backends.ec2.budget import check_affordable
        from master.backends.ec2.provisioning import find_site

        options, cloud = Ec2Options.among(settings.options), self._cloud(settings)
        check_affordable(cloud, find_site(cloud, options), options)

    def describe(self, settings: Settings, directory: RunDirectory, *, foreground: bool) -> str:
        from master.backends.ec2.checks import describe

        return describe(settings, self._cloud(settings))

    def withdraw(self, settings: Settings, directory: RunDirectory) -> str | None:
        from master.backends.ec2.cleanup import withdraw

        return withdraw(self._cloud(settings), directory)

    def upkeep(self) -> Mapping[str, Upkeep]:
        from master.backends.ec2.checks import check, sweep

        return {
            "check": Upkeep(check, "gridml ec2 check --region eu-central-1"),
            "sweep": Upkeep(sweep, "gridml ec2 sweep --older-than 1h --yes"),
        }

    def _cloud(self, settings: Settings) -> Cloud:
        from master.backends.ec2.cloud import Cloud

        return Cloud(Ec2Options.among(settings.options).region)
