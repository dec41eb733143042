"""One model call while it happens, and where it is sent."""
