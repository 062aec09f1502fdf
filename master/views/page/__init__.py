"""A run as an HTML page: one self-contained file, or served live on loopback."""
