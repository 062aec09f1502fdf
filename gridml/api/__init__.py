"""What a script or a notebook calls."""
