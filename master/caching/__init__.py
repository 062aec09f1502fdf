"""The master's records of the rows that workers cache (`gridml.caching`), so that it does not resend them."""
