"""What workers push, and what they are answered."""
