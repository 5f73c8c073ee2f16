"""A reduced Wordle that a small model learns in minutes: the environment, the model, and who plays."""
