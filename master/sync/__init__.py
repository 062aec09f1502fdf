"""Messages of workers: admits and merges their pushes, and replies."""
