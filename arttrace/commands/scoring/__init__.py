"""`arttrace score` and `arttrace judge-check`: rewards for stored runs."""
