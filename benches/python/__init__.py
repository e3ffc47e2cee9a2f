"""What Roost costs from Python, each figure beside a hand-written program that does the same with uvloop alone."""
