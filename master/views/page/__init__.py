"""A run as a page in a browser: one file without a network, or live on loopback."""
