"""The commands of `gridml`, a file each.

With `gridml/cli.py`, which registers them, they are the command line: they may import every package, and nothing but
`gridml/cli.py` imports them. What a command needs is imported inside it, so that `gridml --help` answers at once.
"""
