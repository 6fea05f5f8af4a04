"""Members of groups in a running broker: who hears them, and who coordinates while the metadata is led here."""
