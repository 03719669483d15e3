"""What `bin/bench` measures and how: figures that need more than a few lines have a module each.

Not part of the program: nothing in `controller/` knows of it.
"""
