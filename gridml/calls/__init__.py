"""What a script or a notebook calls: `gridml.run` and the like, with the options of the commands.

`gridml` imports them when they are asked for and not before, so that a worker, which has no master, can import it. They
may import every package, as the commands do, and parse their options with the commands' own code.
"""
