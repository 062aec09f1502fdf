"""Back ends: where workers come from. One file each behind the contract of `base`."""
