"""From text to updates."""
