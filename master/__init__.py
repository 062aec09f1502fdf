"""The submit host: ledger, decisions, merging, back ends and report of a run."""
