"""Run the comparison: `python -m benchmarks.averaging --help`."""

from benchmarks.averaging.comparison import main

if __name__ == "__main__":
    main()
