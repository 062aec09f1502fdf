"""Values that the packages of a run share: records of leases and workers, ranges, jobs, strikes against machines."""
