"""Workers as jobs of an HTCondor pool."""
