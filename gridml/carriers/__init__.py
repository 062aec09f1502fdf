"""Carriers: how syncs, replies and chunks travel. One file each behind the contract of `base`."""
