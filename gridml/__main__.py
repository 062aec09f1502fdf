"""`python -m gridml`: the command line of the Python that runs it, where several are installed."""

from gridml.cli.main import main

if __name__ == "__main__":
    main()
