"""The lease: keys, the pure table of transitions, and the client that plays it on a store."""
