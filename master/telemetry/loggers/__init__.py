"""Loggers that export a run's figures from its ledger: one contract, and a file for each kind of logger."""
