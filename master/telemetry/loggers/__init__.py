"""Where a run's figures are written to, beside its ledger: one small contract, and a file for each kind of logger."""
