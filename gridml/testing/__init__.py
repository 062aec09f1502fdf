"""Contract checks for implementations of merge rules and carriers, for this project and for plug-in authors."""
