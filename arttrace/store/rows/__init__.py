"""The rows of the store's tables: records become rows, and rows records again. Pure except for the SQL it runs."""
