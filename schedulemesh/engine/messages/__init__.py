"""The engine's input and output: stimuli in; facts (what is stored), instructions and outcomes out."""
