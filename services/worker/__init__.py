"""The worker holds the model and steps it: batches in, output tokens out, one step at a time."""
