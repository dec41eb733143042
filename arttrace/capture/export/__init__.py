"""From the end of a span to the collector: recorded in the background, spooled, shipped, acknowledged."""
