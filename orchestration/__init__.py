"""How a turn moves: decide the next step, perform it, keep what came of it."""
