"""`python -m gridml`: the command line under a specific Python, if several are installed."""

from gridml.cli.main import main

if __name__ == "__main__":
    main()
