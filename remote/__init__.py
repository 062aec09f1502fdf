"""The worker process: fetches chunks, trains batches, and pushes until no work is left. Imports gridml only."""
