"""Simulation of everything around the real master: machines, workers and a carrier, under a virtual clock."""
