"""An experiment without any library, for tests with real worker processes."""
