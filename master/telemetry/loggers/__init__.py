"""Loggers that export a run's figures from its ledger: one contract, loggers of files, and loggers of services."""
