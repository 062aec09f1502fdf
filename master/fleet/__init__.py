"""Workers of a run, from submission to end."""
