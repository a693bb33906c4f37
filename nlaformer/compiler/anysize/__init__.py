"""Programs as weights that know neither n nor A: the prompt has a token for each row of A, with addresses."""
