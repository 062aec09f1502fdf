"""The workers of a run, from submission to their end."""
