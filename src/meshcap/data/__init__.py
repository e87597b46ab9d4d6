"""From files to what models read."""
