"""The schema's history: one change a file, each with its way back."""
