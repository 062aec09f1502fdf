"""Back ends: sources of workers, each in a module or package of its own behind the contract of `base`."""
