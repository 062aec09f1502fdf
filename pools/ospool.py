"""What an access point of the OSPool adds to a pool: jobs that began too often or ran too long are held, and those that
use more memory than they asked for.

Taken from its documentation ("Indicate the Duration Category of Your Jobs") and from what its users report of 30
starts; the access points' own files are not public. Hours and starts can be made short, for tests.
"""

from __future__ import annotations

STARTS = 30  # of a job: the next time it waits in the queue it is held
MEDIUM_HOURS, LONG_HOURS = 20.0, 40.0  # that a job of a category may run
_MEMORY = 102  # the subcode of HTCondor's own POLICY:HOLD_IF_MEMORY_EXCEEDED


def policies(*, starts: int = STARTS, medium_s: float = 3600 * MEDIUM_HOURS, long_s: float = 3600 * LONG_HOURS) -> str:
    """Return lines of configuration for `configuration.Host.more`. Every job is of category Medium, unless it says
    Long; the schedd holds what runs for longer than its category allows, `medium_s` or `long_s` seconds."""
    return f"""
JOB_TRANSFORM_NAMES = $(JOB_TRANSFORM_NAMES) Category
JOB_TRANSFORM_Category @=end
    REQUIREMENTS JobUniverse == 5
    DEFAULT JobDurationCategory "Medium"
    EVALSET AllowedExecuteDuration ifThenElse(JobDurationCategory =?= "Long", {long_s:.0f}, {medium_s:.0f})
@end
SYSTEM_PERIODIC_HOLD_NAMES = $(SYSTEM_PERIODIC_HOLD_NAMES) Starts Memory
SYSTEM_PERIODIC_HOLD_Starts = JobUniverse == 5 && JobStatus == 1 && NumJobStarts >= {starts}
SYSTEM_PERIODIC_HOLD_Starts_REASON = strcat("The job was started ", NumJobStarts, " times.")
SYSTEM_PERIODIC_HOLD_Memory = JobUniverse == 5 && JobStatus == 2 && MemoryUsage > RequestMemory
SYSTEM_PERIODIC_HOLD_Memory_REASON = strcat("The job used ", MemoryUsage, " MB of memory and asked for ", RequestMemory)
SYSTEM_PERIODIC_HOLD_Memory_SUBCODE = {_MEMORY}
"""
