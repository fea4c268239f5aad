"""Search: words, fields and comparisons over stored records, newest first."""
