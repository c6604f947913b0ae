"""What the encoders and decoders of every protocol share."""
