"""What ``tenure init`` writes into a user's folder; ``{braces}`` are filled in."""
