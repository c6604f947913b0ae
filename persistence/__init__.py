"""What a turn is made of and how it is kept."""
