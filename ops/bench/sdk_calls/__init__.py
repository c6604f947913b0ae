"""How each protocol is spoken with its SDK by somebody who writes the loop by hand."""
