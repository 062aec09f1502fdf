"""Doubles with a seed and a clock, and checks of the contracts, for this project and for others."""
