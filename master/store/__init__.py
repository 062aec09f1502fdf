"""The state of a run on disk: its ledger, its replica, its directory."""
