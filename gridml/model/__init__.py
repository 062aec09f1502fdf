"""What a user writes, and how it is cut into chunks."""
