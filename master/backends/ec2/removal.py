"""All that runs made on EC2, found by its tags, and removed: instances first, then what they were made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from master.backends.ec2.answers import Kept, Seen
from master.backends.ec2.cloud import ALIVE, Cloud

GOING = "shutting-down"  # no longer paid for
LOOKS, BETWEEN_S = 60, 5.0  # how often it is looked whether the last instances are gone, and how many seconds between


@dataclass(frozen=True)
class Made:
    """What one run, or all runs, have on EC2 at this moment."""

    instances: tuple[Seen, ...] = ()
    templates: tuple[Kept, ...] = ()
    groups: tuple[Kept, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.instances or self.templates or self.groups)

    def __str__(self) -> str:
        parts = [("instance", self.instances), ("launch template", self.templates), ("security group", self.groups)]
        return ", ".join(f"{len(found)} {what}{'s' if len(found) > 1 else ''}" for what, found in parts if found)

    @property
    def runs(self) -> dict[str, str]:
        """The names of the runs, and where each has its directory."""
        found: list[Seen | Kept] = [*self.groups, *self.templates, *self.instances]
        return {each.run: each.place for each in found}

    def of(self, run: str) -> Made:
        """What one of the runs has."""
        return Made(
            tuple(each for each in self.instances if each.run == run),
            tuple(each for each in self.templates if each.run == run),
            tuple(each for each in self.groups if each.run == run),
        )


def made_by(cloud: Cloud, run: str | None = None) -> Made:
    """Look for what a run has on EC2, or all runs. Raises CloudError."""
    return Made(tuple(cloud.instances(run, states=ALIVE)), tuple(cloud.templates(run)), tuple(cloud.groups(run)))


def remove(cloud: Cloud, run: str, rest: Callable[[float], None], looks: int = LOOKS) -> tuple[Made, Made]:
    """Remove what a run has; return what that was, and what is left after so many looks. Raises CloudError."""
    found = left = made_by(cloud, run)
    for look in range(looks):
        if not left:
            break
        if look:
            rest(BETWEEN_S)
        cloud.end([each.id for each in left.instances if each.state != GOING])
        for template in left.templates:
            cloud.remove_template(template.id)
        for group in left.groups:  # stays while an instance has it
            cloud.remove_group(group.id)
        left = made_by(cloud, run)
    return found, left
