"""An experiment that is trained by several ranks."""
