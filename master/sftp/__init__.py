"""The master's SFTP server, for workers that use the SFTP carrier; enrolment of a fleet, and its costs."""
