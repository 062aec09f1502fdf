"""The worker: a chunk in, batches trained, pushes out, until the chunks or the machine end. Imports gridml only."""
