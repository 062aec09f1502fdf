"""Planning before a run: chunk size (`gridml plan`), and trying a program out (`gridml check`)."""
