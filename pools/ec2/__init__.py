"""A local EC2 in namespaces, whose instances really boot. Not part of the installed package."""
