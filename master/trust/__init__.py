"""Who among the workers is trusted: `trust.py` is what others call."""
