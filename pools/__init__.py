"""Real HTCondor pools on one machine, for newcomers, tests and benchmarks. Not part of the installed package."""
