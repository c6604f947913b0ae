"""The values that are stored: frozen, comparable, standard library only."""
