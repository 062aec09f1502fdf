"""How large a chunk should be, asked before a run."""
