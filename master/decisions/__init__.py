"""What the master decides, as pure functions from facts to (decision, reason). No clock, no I/O, no threads in here."""
