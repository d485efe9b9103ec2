"""What arrives in the simulated world: lengths, arrival times and length estimates, composed.

`base` has the result, an `Arrival`; `presets` makes whole workloads by name. The rest are the
parts, each seeded and pure: where lengths come from, when requests arrive, what a tagger says.
"""
