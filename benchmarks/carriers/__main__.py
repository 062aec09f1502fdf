"""Run the comparison: `python -m benchmarks.carriers --help`."""

from benchmarks.carriers.comparison import main

if __name__ == "__main__":
    main()
