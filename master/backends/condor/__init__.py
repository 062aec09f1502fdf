"""The HTCondor back end: workers as jobs of a pool."""
