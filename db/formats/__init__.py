"""Import and export formats: one file a format, offered under its name."""
