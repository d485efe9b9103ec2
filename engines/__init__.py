"""Real engines for machines without a GPU: `make engines` sets them up, the tests and the
evaluation run on them.

Each lives in a virtual environment of its own, since their pins conflict; a worker in front of one
runs there too. Nothing here is imported by the pipeline.
"""
