"""`make soak`: many streams at once for minutes, while nobody's memory may grow."""
