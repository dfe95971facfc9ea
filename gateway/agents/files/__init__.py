"""Files that agents read and write: stores, text search, and the context provider that adds the file tools."""
