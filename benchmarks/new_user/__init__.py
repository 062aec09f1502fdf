"""Nine tasks of somebody new to gridml, each as the plain loop that they have and as the program that they write."""
