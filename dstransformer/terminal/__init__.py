"""How a command behaves in a shell, and how it shows progress."""
