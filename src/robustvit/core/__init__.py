"""What every other package uses: components, configuration, randomness, files, progress."""
