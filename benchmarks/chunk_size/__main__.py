"""Run the comparison: `python -m benchmarks.chunk_size --help`."""

from benchmarks.chunk_size.comparison import main

if __name__ == "__main__":
    main()
