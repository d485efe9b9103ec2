"""`make chaos`: a stack under steady load while its components are killed, stopped and cut off.

What was accepted has to end exactly once, whatever the seed.
"""
