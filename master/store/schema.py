"""The tables of a ledger. A run is finished with the gridml that began it: there is no migration."""

from __future__ import annotations

SCHEMA_VERSION = 4
SCHEMA = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, vertices INTEGER NOT NULL, credited INTEGER NOT NULL DEFAULT 0,
  opened_s REAL, closed_s REAL, version INTEGER, metrics TEXT);
CREATE TABLE spans (epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, failed TEXT NOT NULL,
  PRIMARY KEY (epoch, start));
CREATE TABLE leases (id INTEGER PRIMARY KEY, term INTEGER NOT NULL, epoch INTEGER NOT NULL, start INTEGER NOT NULL,
  stop INTEGER NOT NULL, upto INTEGER NOT NULL, worker TEXT NOT NULL, sequence INTEGER NOT NULL, version INTEGER,
  failed TEXT NOT NULL DEFAULT '', trained INTEGER NOT NULL, reason TEXT NOT NULL, opened_s REAL NOT NULL,
  closed_s REAL, closed_because TEXT, reserved_until_s REAL, overtaken INTEGER NOT NULL DEFAULT 0);
CREATE TABLE credits (epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, lease INTEGER NOT NULL,
  version INTEGER NOT NULL, worker TEXT NOT NULL, staleness REAL NOT NULL, at_s REAL NOT NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY, sha256 TEXT, credited INTEGER NOT NULL, pushes INTEGER NOT NULL,
  at_s REAL NOT NULL, kept INTEGER NOT NULL DEFAULT 1);
CREATE TABLE patches (version INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE bases (version INTEGER NOT NULL, field TEXT NOT NULL, digests TEXT NOT NULL, PRIMARY KEY (version, field));
CREATE TABLE workers (worker TEXT PRIMARY KEY, state TEXT NOT NULL, machine TEXT, kind TEXT, graceful INTEGER,
  cancelled INTEGER, detail TEXT, pid INTEGER, submitted_s REAL, started_s REAL, first_sync_s REAL, ended_s REAL,
  trained INTEGER NOT NULL DEFAULT 0, train_s REAL NOT NULL DEFAULT 0, credited INTEGER NOT NULL DEFAULT 0,
  push_every INTEGER, push_reason TEXT, bytes_up INTEGER NOT NULL DEFAULT 0, bytes_down INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0, avoided_until_s REAL, avoided_because TEXT);
CREATE TABLE machines (name TEXT PRIMARY KEY, failures INTEGER NOT NULL, distrusted INTEGER NOT NULL,
  avoided_until_s REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE blames (at_s REAL NOT NULL, worker TEXT NOT NULL, lease INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE quarantined (worker TEXT PRIMARY KEY, at_s REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE failures (at_s REAL NOT NULL, worker TEXT NOT NULL, machine TEXT NOT NULL, lease INTEGER NOT NULL,
  epoch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, message TEXT NOT NULL,
  traceback TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE events (at_s REAL NOT NULL, topic TEXT NOT NULL, text TEXT NOT NULL);
"""
