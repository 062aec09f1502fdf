"""Leases: ranges of an epoch that workers hold, from grant to end."""
