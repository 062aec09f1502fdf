"""A worker's caches of chunks, tensors and rows, so that they are not sent twice. `master.caching` tracks them."""
