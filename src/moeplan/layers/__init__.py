"""Which operators make a layer of a model family, grouped into the stages that a schedule moves."""
