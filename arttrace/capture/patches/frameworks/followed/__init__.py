"""Frameworks that are followed by the OpenTelemetry spans they make: what these do not say, or do not bring along."""
