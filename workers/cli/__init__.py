"""The command `perdure`. Modules import heavy things inside their commands, so that help and mistakes are answered at once."""
