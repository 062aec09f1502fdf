"""What a worker keeps, and what neither end need send the other because it has that: `master.caching` knows of it."""
