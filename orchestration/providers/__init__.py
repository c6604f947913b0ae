"""The model clients: one adapter for each wire protocol, and what they share."""
