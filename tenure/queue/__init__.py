"""Whose job goes next where there is more demand than room: teams, shares, places."""
