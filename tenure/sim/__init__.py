"""The protocol under a hostile world: seeded histories on a virtual clock, and an exhaustive check."""
