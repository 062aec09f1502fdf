"""The SFTP server that a master has where its workers' messages travel that way."""
