"""Our side of the wire: what to launch where, and what became of it."""
