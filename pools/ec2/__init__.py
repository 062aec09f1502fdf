"""A local EC2 in namespaces, whose instances boot a real Debian. Not part of the installed package."""
