"""The calls from Python: run, submit, launch, simulate, resume, load."""
