"""What a run keeps: its ledger, its replica, its directory."""
