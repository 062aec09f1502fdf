"""The protocol between workers and the master: messages and rules of both ends, without I/O or clock."""
