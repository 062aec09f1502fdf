"""What travels between a worker and its master, and the rules that both keep; without I/O or clock."""
