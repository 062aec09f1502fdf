"""Ten programs that people write: each file has the network, the plain loop, and the gridml program."""
