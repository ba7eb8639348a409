"""What the benchmarks measure with: stores that count, intervals that say how sure, one report."""
