"""From measured rows to the parameters of a form, with the error on rows that the parameters had not seen."""
