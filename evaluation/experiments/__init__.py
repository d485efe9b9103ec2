"""Named, seeded experiments in the simulated world: `astrolabe evaluate`.

`cells` is one run as plain data, `runs` runs many, `statistics` and `capacity_of` say what they
show, `report` writes it down. One module an experiment, all of them in `registry`.
"""
