"""What the tables of the store hold: records become rows, and rows records again. Pure but for the SQL it runs."""
