"""`arttrace init`, `import`, `export` and `prune`: commands on the data directory and the store as a whole."""
