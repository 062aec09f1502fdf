"""What the master has seen of its workers."""
