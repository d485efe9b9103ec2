"""Yesterday's requests again: read from the HISTORY stream or a file, published on their old times.

read or load  ->  plan (fresh ids, offsets, speed)  ->  drive, as any other load
"""
