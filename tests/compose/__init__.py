"""The compose stack: its files as they are read, its metrics as they are served, and a real run."""
