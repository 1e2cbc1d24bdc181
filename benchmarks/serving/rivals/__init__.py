"""The rivals' programs, each written as its guide does it; each runs in an environment of its own, without Lockstep."""
