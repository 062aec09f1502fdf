"""A worker's caches of chunks, tensors and rows, so that neither end resends them. `master.caching` tracks them."""
