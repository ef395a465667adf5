"""What every other package stands on: components, configuration, randomness, files, progress."""
