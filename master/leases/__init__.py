"""What is leased to whom."""
