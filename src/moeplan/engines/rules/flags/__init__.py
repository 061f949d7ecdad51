"""From what one types into a server to the layout that the model sees: parsed flags, by engine and version."""
