"""What the master knows of the rows that workers keep (`gridml.caching`), so that it does not send them again."""
