"""The interfaces of a master to the outside: environment, mailboxes, and back ends."""
