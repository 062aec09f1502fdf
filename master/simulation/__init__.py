"""A world for the real master: machines that come and go, workers and a carrier under a clock of their own."""
