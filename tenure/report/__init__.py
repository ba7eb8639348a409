"""What a plan has come to: its costs, its losses, and the page that shows them."""
