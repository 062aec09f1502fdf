"""Commands of `gridml` that have a file of their own. With `gridml/cli.py`, which registers them, they are the command
line: they may import every package, and nothing but `gridml/cli.py` imports them."""
