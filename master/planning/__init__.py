"""How large a chunk should be, before a run."""
