"""The rate guard: what all workers know together of rate limits, dead endpoints and refused keys, in Redis.

Redis may vanish or lie at any instant; a call is then let through. Every instant is of Redis's own clock.
"""
