"""An experiment whose artifacts tell which process wrote them."""
