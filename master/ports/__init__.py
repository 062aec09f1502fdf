"""What comes to a master from outside: its environment, mailboxes, and what a back end brings."""
