"""Evaluation: runs the user's own code on the submit host after an epoch, in a process that may fail."""
