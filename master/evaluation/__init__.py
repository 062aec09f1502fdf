"""What the submit host computes with the user's own code after an epoch, in a process that may fail."""
