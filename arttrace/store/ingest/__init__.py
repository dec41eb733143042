"""Records into the tables: segments of a journal read in batches, each batch written in one transaction."""
