"""Speech to text: audio files to samples, samples to windows, windows to segments of text."""
