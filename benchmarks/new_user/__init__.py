"""Nine tasks of a new user: each as the plain loop that they have, and as the program that they write."""
