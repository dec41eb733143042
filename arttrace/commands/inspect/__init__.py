"""`arttrace ls`, `show`, `sql` and `group`: commands that read the store."""
