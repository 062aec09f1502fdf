"""Nine tasks of a new user: each as a plain loop, and as the same user's first gridml program."""
