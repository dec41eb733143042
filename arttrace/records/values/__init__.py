"""What a value in a record may be: integers of a column, nesting that can be read, values that JSON cannot
represent."""
