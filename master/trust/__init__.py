"""Trust in workers. Other packages use only `trust.py`."""
