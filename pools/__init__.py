"""Real HTCondor pools and a local EC2 on one machine, for newcomers, tests and benchmarks. Not installed."""
