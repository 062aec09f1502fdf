"""Carriers: transports of syncs, replies and chunks. One file each behind the contract of `base`."""
