"""What a run's parts share: records of leases and workers, ranges, jobs, and what counts against a machine."""
