"""Connections that keep the limits and the stop of the model call that uses them."""
